"""What each kernel of a training step was launched for, from a profile."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

# an operator of fracdna_kernels, from the name of what launched the kernel, to its part
OPERATORS = {
    "frac_scan": "scan",
    "frac_gates": "gates",
    "rms_norm": "norms",  # gated_, add_, and the first of a model, which adds nothing
    "short_convolution": "convolution",
    "exact_linear": "products",
}
# operators of PyTorch that are products with all that they launch, cleared workspaces too
PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm")
# name of a kernel that no operator launched, to its part; the first that matches
NAMES = (
    ("products", r"gemm|gemv|cutlass|nvjet|xmma|cublas|splitKreduce"),
    ("optimizer", r"multi_tensor|foreach|adam"),
    ("loss", r"softmax|nll|embedding|cross_entropy"),
    ("elementwise", r"elementwise|copy|cat|Memcpy|Memset|fill|reduce|triton_|layer_norm|rms_norm"),
)
PARTS = ("products", "scan", "gates", "norms", "convolution", "elementwise", "optimizer", "loss")
OTHER = "other"
# names of the host that the device's time line repeats over the kernels launched under them; direct
# calls of our operators are annotated, while those through PyTorch's dispatcher are operators
ANNOTATIONS = ("ProfilerStep", "Optimizer.", "fracdna::")
# parts of a layer that are neither matrix products nor the scan
OUTSIDE = ("gates", "norms", "convolution", "elementwise", OTHER)


def part_of(kernel: str, callers: Iterable[str] = ()) -> str:
    """The part of a training step that a kernel belongs to.

    Args:
        kernel: its name.
        callers: names of the operators and annotations that it was launched in, if known.
    """
    told = next(filter(None, map(_told, callers)), None)
    named = (part for part, pattern in NAMES if re.search(pattern, kernel, re.IGNORECASE))
    return told or next(named, OTHER)


def _told(caller: str) -> str | None:
    """The part that a caller's name tells, if it does."""
    if caller.startswith("fracdna::"):
        return next((part for operator, part in OPERATORS.items() if operator in caller), None)
    if caller.startswith("Optimizer."):
        return "optimizer"
    if "embedding" in caller:
        return "loss"
    return "products" if caller in PRODUCTS else None


def times_by_part(events: Iterable[Any]) -> dict[str, float]:
    """Microseconds of device time of each part.

    Args:
        events: torch.profiler's events: those of the host hold the kernels that they launched;
            kernels that no event of the host claims are sorted by their names.
    """
    from torch.autograd import DeviceType

    total: dict[str, float] = defaultdict(float)
    unclaimed: dict[str, float] = defaultdict(float)
    for event in events:
        if event.device_type == DeviceType.CUDA:
            if not _annotation(event):
                unclaimed[event.name] += event.time_range.elapsed_us()
            continue
        for kernel in event.kernels:
            if kernel.name.startswith(ANNOTATIONS):
                continue
            total[part_of(kernel.name, _callers(event))] += kernel.duration
            unclaimed[kernel.name] -= kernel.duration
    for name, time in unclaimed.items():
        if time > 0:
            total[part_of(name)] += time
    return {part: total.get(part, 0.0) for part in (*PARTS, OTHER)}


def _annotation(event: Any) -> bool:
    """Whether an event of the device is the span of an annotation of the host."""
    return event.name.startswith(ANNOTATIONS) or bool(getattr(event, "is_user_annotation", False))


def _callers(event: Any) -> Iterable[str]:
    """Names of an event of the host and of all that it was called in."""
    while event is not None:
        yield event.name
        event = event.cpu_parent
