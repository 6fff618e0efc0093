"""The tuning of launches, as far as it needs no GPU."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import tune_kernels
from kernel_benchmark import timing
from tune_kernels import Launch, Recorder, Timing

from fracdna_kernels.frac_scan import launches


def test_candidates_keep_blocks_within_the_width():
    """From a quarter of the width to all of it, never below the smallest tile, none twice."""
    for width in (16, 32, 64, 128, 256):
        tried = list(tune_kernels.candidates(width))
        assert len(set(tried)) == len(tried)
        assert {x.columns for x in tried} == {w for w in (width, width // 2, width // 4) if w >= 16}


def timings():
    yield Timing("output", 16, 64, Launch(64, 2, 3), True, 1.01)
    yield Timing("output", 16, 64, Launch(64, 4, 3), False, 1.0)
    yield Timing("output", 16, 64, Launch(64, 8, 3), False, None, "OutOfResources: registers")
    yield Timing("output", 16, 128, Launch(128, 4, 2), True, 2.0)
    yield Timing("output", 16, 128, Launch(64, 2, 2), False, 1.5)
    yield Timing("sweep", 16, 64, Launch(64, 1, 1), True, 1.0)
    yield Timing("output", 32, 64, Launch(64, 1, 1), False, 0.1)


def test_the_best_launch_replaces_the_shipped_one_only_when_clearly_faster():
    """One per cent is noise; what was left out and what has other modes does not count."""
    table = tune_kernels.best(timings(), 16)
    assert table == {
        "output": {64: Launch(64, 2, 3), 128: Launch(64, 2, 2)}, "sweep": {64: Launch(64, 1, 1)},
    }  # fmt: skip
    lines = list(tune_kernels.comparisons(timings()))
    assert "1.33 times" in next(line for line in lines if "V=128" in line)
    assert "left out: OutOfResources" in str(list(timings())[2])


def test_the_printed_table_is_that_of_the_package():
    """Pasted, the shipped table would be the shipped table."""
    namespace = {}
    table = {
        kernel: {width: Launch(*launch) for width, launch in rows.items()}
        for kernel, rows in launches._TUNED.items()
    }
    exec(tune_kernels.render(table), namespace)
    assert namespace["_TUNED"] == launches._TUNED
    assert tuple(launches._TUNED) == tune_kernels.KERNELS


def test_recorded_launches_can_be_repeated():
    """A recorder launches what it is asked to, and again with the same arguments."""
    seen = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: seen.append((grid, arguments, options))

    recorder = Recorder(Kernel())
    recorder[(3,)](1, BV=16)
    recorder[(4,)](2)
    recorder()
    assert seen == 2 * [((3,), (1,), {"BV": 16}), ((4,), (2,), {})]


@pytest.mark.skipif(torch.cuda.is_available(), reason="sizes are those of the interpreter")
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(name, marks=() if name == "output" else pytest.mark.slow)
        for name in tune_kernels.KERNELS
    ],
)
def test_a_launch_is_tried_where_the_operator_would_use_its_own(kernel, monkeypatch):
    """The tried launch reaches its kernel alone, and its numbers are held against the shipped."""
    monkeypatch.setattr(timing, "measure", lambda calls, _: SimpleNamespace(ms=calls[0].launches))
    variables = {
        "values": torch.randn(1, 40, 1, 32),
        "write": torch.rand(1, 40, 1, 8),
        "read": torch.rand(1, 40, 1, 8),
        "u": torch.rand(1, 40, 1),
    }
    arguments = {name: x.requires_grad_() for name, x in variables.items()}
    arguments |= {"log_tau": torch.arange(8.0), "segment_length": 32, "form": "triton"}
    expected = tune_kernels.both_passes(arguments)
    launch = Launch(16, 1, 2)
    recorded = [
        tuple(again.keywords[name] for name in ("BV", "num_warps", "STAGES"))
        for again in tune_kernels.time_launch(kernel, launch, arguments, expected, 0.0)
    ]
    assert recorded == [launch] * {"output": 1, "sweep": 3, "gradient": 1}[kernel]
    with pytest.raises(ValueError, match="differs from the shipped"):
        tune_kernels.time_launch(kernel, launch, arguments, [2 * x for x in expected], 0.0)
