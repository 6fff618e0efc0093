"""Rotary angles that the input moves, at a speed of its own for each head."""

from torch import Tensor

from fracdna_kernels.forms import check_exact, choose_form, without_autocast
from fracdna_kernels.fused import fused_refusal, lazily
from fracdna_kernels.selective_angles.reference import selective_angles_reference
from fracdna_kernels.shapes import check_shapes

FORMS = {
    "reference": selective_angles_reference,
    "triton": lazily("fracdna_kernels.selective_angles.triton_form", "selective_angles_triton"),
}
MOST_PAIRS = 256  # of the fused form: a program holds all of them


def selective_angles(
    delta: Tensor, speed: Tensor, *, start: Tensor | None = None, form: str = "auto"
) -> Tensor:
    """theta_t = theta_{t-1} + delta_t pi tanh(speed_t), less the nearest multiple of 2 pi.

    Sums are kept in float64: only differences of angles count, and float32 would lose theirs in a
    long sum. For the same reason packed sequences need no bounds: whatever came before moves all
    angles of a sequence alike.

    Args:
        delta: (B, T, H), time steps in float32 or float64.
        speed: (B, T, P) likewise, one for each pair of coordinates, shared by the heads.
        start: (B, H, P), angles before the first position; None: zeros.
        form: "auto", "reference" or "triton"; the last takes at most 256 pairs.

    Returns:
        (B, T, H, P) in the dtype of delta, radians from -pi to pi.

    Raises:
        ValueError: axes that do not fit, half precision, or a form that does not exist or cannot
            run.

    Source: Mamba-3, arXiv 2603.15569.
    """
    sizes = check_shapes(delta=(delta, "BTH"), speed=(speed, "BTP"), start=(start, "BHP"))
    check_exact(delta=delta, speed=speed, start=start)
    inputs = tuple(tensor for tensor in (delta, speed, start) if tensor is not None)
    refusal = _refusal(sizes["P"], inputs)
    chosen = choose_form(form, tuple(FORMS), sizes["T"], inputs, refusal=refusal)
    with without_autocast(chosen, delta):
        return FORMS[chosen](delta, speed, start)


def _refusal(pairs: int, inputs: tuple[Tensor, ...]) -> str | None:
    """Why the fused kernels cannot take these inputs, or None."""
    if pairs > MOST_PAIRS:
        return f"takes at most {MOST_PAIRS} pairs, got {pairs}"
    return next(filter(None, map(fused_refusal, inputs)), None)
