"""The equation of gated_skip."""

from torch import Tensor
from torch.nn.functional import silu

from fracdna_kernels.forms import accumulator


def gated_skip_reference(
    x: Tensor,
    values: Tensor,
    factor: Tensor,
    gate: Tensor,
    gate_mix: Tensor | None,
    output_mix: Tensor | None,
) -> Tensor:
    """See gated_skip for shapes and meaning."""
    dtype = accumulator(x)
    y, values = (part.to(dtype).transpose(2, 3) for part in (x, values))
    y = y + factor.to(dtype) @ values
    gate = gate.to(dtype).unflatten(-1, (x.shape[3], 1, x.shape[4]))
    if gate_mix is not None:
        gate, y = gate * gate_mix.to(dtype), y * output_mix.to(dtype)
    return (y * silu(gate)).sum(-2).flatten(2).to(x.dtype)
