"""Operators of linear-memory sequence models, in several interchangeable forms."""

from fracdna_kernels.add_rms_norm import add_rms_norm
from fracdna_kernels.decay_attention import decay_attention
from fracdna_kernels.delta_rule import delta_rule, dplr_delta_rule
from fracdna_kernels.exact_linear import exact_linear
from fracdna_kernels.frac_gates import frac_gates
from fracdna_kernels.frac_scan import frac_scan
from fracdna_kernels.gated_rms_norm import gated_rms_norm
from fracdna_kernels.long_convolution import long_convolution
from fracdna_kernels.selfcheck import selfcheck
from fracdna_kernels.short_convolution import short_convolution

__all__ = [
    "add_rms_norm",
    "decay_attention",
    "delta_rule",
    "dplr_delta_rule",
    "exact_linear",
    "frac_gates",
    "frac_scan",
    "gated_rms_norm",
    "long_convolution",
    "selfcheck",
    "short_convolution",
]
