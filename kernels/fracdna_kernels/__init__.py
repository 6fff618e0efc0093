"""Operators of linear-memory sequence models, in several interchangeable forms."""

from fracdna_kernels.add_rms_norm import add_rms_norm
from fracdna_kernels.decay_attention import decay_attention
from fracdna_kernels.delta_rule import delta_rule, dplr_delta_rule
from fracdna_kernels.dplr_gates import dplr_gates
from fracdna_kernels.exact_linear import exact_linear
from fracdna_kernels.frac_gates import frac_gates
from fracdna_kernels.frac_scan import frac_scan
from fracdna_kernels.gated_head_norm import gated_head_norm
from fracdna_kernels.gated_rms_norm import gated_rms_norm
from fracdna_kernels.gated_skip import gated_skip
from fracdna_kernels.long_convolution import long_convolution
from fracdna_kernels.rotary_norm import rotary_norm
from fracdna_kernels.selective_angles import selective_angles
from fracdna_kernels.selfcheck import selfcheck
from fracdna_kernels.shifted_layer_norm import shifted_layer_norm
from fracdna_kernels.short_convolution import short_convolution
from fracdna_kernels.squared_relu import squared_relu

__all__ = [
    "add_rms_norm",
    "decay_attention",
    "delta_rule",
    "dplr_delta_rule",
    "dplr_gates",
    "exact_linear",
    "frac_gates",
    "frac_scan",
    "gated_head_norm",
    "gated_rms_norm",
    "gated_skip",
    "long_convolution",
    "rotary_norm",
    "selective_angles",
    "selfcheck",
    "shifted_layer_norm",
    "short_convolution",
    "squared_relu",
]
