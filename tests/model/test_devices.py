import subprocess
import sys

import pytest
import torch
from models import tiny_model
from numerics import relative_error

HIDDEN = """
import sys
sys.modules["triton"] = None  # as if it were not installed
import torch
from fracdna_kernels import frac_scan
from fracdna_kernels.fused import describe_kernels
inputs = [torch.rand(1, 40, 2, 8), torch.rand(1, 40, 2, 4), torch.rand(1, 40, 2, 4)]
clock, log_tau = torch.rand(1, 40, 2), torch.linspace(0, 5, 4)
output, _ = frac_scan(*inputs, clock, log_tau)
assert torch.equal(output, frac_scan(*inputs, clock, log_tau, form="chunk")[0])
print(describe_kernels(torch.device("cpu")))
try:
    frac_scan(*inputs, clock, log_tau, form="triton")
except ValueError as error:
    print(error)
"""


def test_without_triton_all_works_and_says_what_runs():
    """Another or no Triton must not break what does not need it."""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("PyTorch (Triton is not installed")
    assert lines[1].startswith("form='triton' cannot run: Triton is not installed")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mixer", ["frac", "attention"])
def test_a_device_gives_the_logits_and_gradients_of_the_processor(mixer):
    """The same weights and ids in float32: fused kernels there, plain PyTorch here."""
    torch.manual_seed(0)
    ids = torch.randint(7, 11, (2, 300))
    model = tiny_model(mixer)
    results = []
    for device in ("cpu", "cuda"):
        model.zero_grad(set_to_none=True)
        model.to(device)
        logits = model(ids.to(device))
        logits.square().mean().backward()
        # copied: moving the model moves its gradients too
        gradients = [p.grad.cpu().clone() for p in model.parameters() if p.grad is not None]
        results.append([logits.detach().cpu(), *gradients])
    assert relative_error(results[1][0], results[0][0]) < 1e-5
    for gradient, expected in zip(results[1][1:], results[0][1:], strict=True):
        assert relative_error(gradient, expected) < 1e-3
