"""How the kernel benchmark sorts the kernels of a profile."""

import sys
from pathlib import Path
from types import SimpleNamespace

from torch.autograd import DeviceType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from kernel_benchmark import kernel_parts


def test_a_kernel_belongs_to_what_launched_it():
    """Its own name counts only where no operator says what it is for."""
    part_of = kernel_parts.part_of
    assert part_of("_backward_kernel", ["fracdna::add_rms_norm_backward", "Function"]) == "norms"
    assert part_of("Memset (Device)", ["aten::mm", "MmBackward0"]) == "products"
    assert part_of("Memset (Device)", ["aten::zero_"]) == "elementwise"
    assert part_of("radix_sort", ["aten::embedding_dense_backward"]) == "loss"
    assert part_of("nvjet_sm90", []) == "products"
    assert part_of("unheard_of") == "other"


def test_kernels_of_direct_calls_are_counted_once():
    """The device repeats an annotation over its kernels, and the host lists it among them."""
    name = "fracdna::frac_scan_forward"
    spans = [SimpleNamespace(name=name, duration=5.0), SimpleNamespace(name="sweep", duration=3.0)]
    host = SimpleNamespace(device_type=DeviceType.CPU, name=name, cpu_parent=None, kernels=spans)
    device = [
        SimpleNamespace(
            device_type=DeviceType.CUDA,
            name=span.name,
            time_range=SimpleNamespace(elapsed_us=lambda time=span.duration: time),
        )
        for span in spans
    ]
    found = kernel_parts.times_by_part([host, *device])
    assert {part: time for part, time in found.items() if time} == {"scan": 3.0}
