"""What fused forms share outside their kernels."""

import pytest
import torch

from fracdna_kernels import fused
from fracdna_kernels.forms import without_autocast
from fracdna_kernels.fused import describe_kernels, fused_refusal

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_refusal_is_a_constant_for_the_compiler(monkeypatch):
    """Compiled code takes the same branch, without a break."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch._dynamo.reset()
    branch = lambda x: x + 1 if fused_refusal(x) is None else x - 1  # noqa: E731
    for dtype in (torch.float32, torch.float16):
        x = torch.zeros(2, dtype=dtype)
        assert "needs a CUDA device, got cpu" in fused_refusal(x)
        compiled = torch.compile(branch, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), x - 1)


def test_what_runs_on_a_processor_comes_without_advice(monkeypatch):
    """The line stands in every run, and nothing can be done about a missing GPU."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(fused, "_missing_triton", lambda: None)
    fused._found_refusal.cache_clear()
    described = describe_kernels(torch.device("cpu"))
    fused._found_refusal.cache_clear()
    assert described == "PyTorch (needs a CUDA device, got cpu)"


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("form", ["reference", "triton"])
def test_autocast_is_off_for_forms_that_it_would_round(form, enabled):
    """Outside, it is as it was."""
    x = torch.ones(2, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=enabled):
        with without_autocast(form, x):
            assert torch.is_autocast_enabled(DEVICE) == (enabled and form == "triton")
        assert torch.is_autocast_enabled(DEVICE) == enabled


@pytest.mark.parametrize(
    ("view", "step", "copied"),
    [
        (lambda x: x, 12, False),
        (lambda x: x[..., 3:7], 12, False),
        (lambda x: x[:1, :1], 12, False),
        (lambda x: x[:, :2], 12, True),
        (lambda x: x.transpose(1, 2), 3, True),
        (lambda x: x[..., :1].expand(2, 3, 4), 4, True),
    ],
    ids=["dense", "channels", "one row", "positions", "transposed", "expanded"],
)
def test_rows_are_copied_only_where_they_lie_at_no_single_distance(view, step, copied):
    from fracdna_kernels.triton_rows import optional_rows, rows_of

    x = view(torch.arange(72.0).view(2, 3, 12))
    rows, found = rows_of(x)
    assert found == step
    assert (rows.data_ptr() != x.data_ptr()) == copied
    count = x.shape[0] * x.shape[1]
    again = rows.as_strided((count, x.shape[2]), (found, 1), rows.storage_offset())
    assert torch.equal(again, x.reshape(count, -1))
    assert optional_rows(None) == (None, 0)
