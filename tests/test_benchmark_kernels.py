"""The parts of the kernel benchmark that need no GPU."""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import benchmark_kernels
from kernel_benchmark import (
    agreement,
    floors,
    inputs,
    kernel_parts,
    linear,
    model,
    operators,
    peers,
    report,
    scan,
    timing,
    worker,
)
from kernel_benchmark.inputs import Shape
from kernel_benchmark.run import Run

from fracdna_prep.errors import InputError

SCRIPTS = Path(benchmark_kernels.__file__).parent


def generator():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("width", [64, 128, 256])
def test_scan_floor_is_that_of_the_design(width):
    """With 16 modes in bfloat16 the two passes move 68 + 4V and 136 + 6V bytes."""
    floor = floors.frac_scan_bytes(width, 16)
    assert (floor.forward, floor.backward) == (68 + 4 * width, 136 + 6 * width)
    assert floor.of(backward=True) == 204 + 10 * width
    assert floors.decode_bytes(width, 16) == 128 * width


def test_floors_of_the_other_operators():
    """Bytes forward and backward, in bfloat16 unless said otherwise."""
    assert floors.frac_gates_bytes(16, gate_size=2) == floors.Bytes(138, 208)
    assert floors.frac_gates_bytes(16) == floors.Bytes(144, 220)  # the dynamics are in float32
    assert floors.gated_rms_norm_bytes(skip=False) == floors.Bytes(6, 10)
    assert floors.gated_rms_norm_bytes(skip=True) == floors.Bytes(8, 14)
    assert floors.add_rms_norm_bytes() == floors.Bytes(8, 8)
    assert floors.add_rms_norm_bytes(stream_size=4) == floors.Bytes(12, 16)
    assert floors.short_convolution_bytes() == floors.Bytes(4, 6)


def test_floor_of_a_layer_is_the_sum_of_its_operators():
    """Parts add up, and a wider stream costs its own width only."""
    parts = floors.layer_bytes(256, 512, 4, 16)
    assert parts["norms"].forward == 8 * 256 + 8 * 512
    assert sum(part.both for part in parts.values()) == 16 * 256 + 22 * 512 + 10 * 512 + 4 * 364
    wider = floors.layer_bytes(256, 512, 4, 16, stream_size=4)
    assert wider["norms"].both - parts["norms"].both == 12 * 256


def test_share_of_the_floor_is_one_at_the_copy_rate():
    """1 GB at 4 TB/s takes a quarter of a millisecond."""
    assert floors.share(1e9, 0.25, 4e12) == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12345.6, "12,346"),
        (999.4, "999"),
        (12.34, "12.3"),
        (1.0, "1.00"),
        (0.01234, "0.0123"),
        (-2.5, "-2.50"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_three_digits(value, text):
    """Neither exponents nor digits that were not measured."""
    assert report.three_digits(value) == text


def test_a_table_has_every_column_of_every_row():
    """Columns stand in the order of their first use; what a row lacks stays empty."""
    table = report.render([{"a": 1, "floor": 0.456}, {"a": 20000, "met": False, "b": "x|y"}])
    assert table.splitlines() == [
        "| a | floor | met | b |",
        "| --- | --- | --- | --- |",
        "| 1 | 46% |  |  |",
        "| 20,000 |  | NO | x/y |",
    ]


def test_a_failed_write_keeps_the_old_results(tmp_path):
    """The JSON file is replaced whole or not at all, and nothing is left beside it."""
    path = tmp_path / "results.json"
    report.write_json(path, {"ms": 1.5})
    with pytest.raises(TypeError):
        report.write_json(path, {"ms": object()})
    assert json.loads(path.read_text()) == {"ms": 1.5}
    assert list(tmp_path.iterdir()) == [path]


def test_statistics_are_per_call():
    """A sample of a graph holds several calls; outliers move the spread, not the median."""
    found = timing.summarize([2.0, 2.0, 2.0, 2.0, 20.0], 2, graph=True)
    assert (found.ms, found.repetitions, found.row()["reps"]) == (1.0, 10, "10 graph")
    assert found.spread == pytest.approx(9)


def test_repetitions_keep_within_their_time():
    """Many for short calls, at least a few for long ones, at least 50 where they fit."""
    assert timing.repetitions(0.01, 1.5) == timing.MOST
    assert timing.repetitions(30, 1.5) == 50
    assert timing.repetitions(2000, 1.5) == timing.FEWEST


def test_input_sets_outgrow_the_cache():
    """Together they are larger than the cache; never fewer than two, never too many."""
    assert timing.input_sets(50e6) == 4
    assert timing.input_sets(1e9) == 2
    assert timing.input_sets(1) == 32


def test_gradients_of_the_first_output():
    """Outputs without a gradient of their own, such as states, are left out."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (gradient,) = timing.gradients(lambda: (x * x, x.exp()), [x], [torch.ones(2)])()
    assert gradient.tolist() == [2.0, 4.0]
    assert timing.without_gradients(lambda: x * x)().requires_grad is False


def test_clocks_are_those_that_the_table_names():
    """About 3.1 from initial gates; wide but capped; jumps once in 1,000 positions."""
    u = {kind: inputs.clock(kind, 2, 2500, 3, generator()) for kind in inputs.KINDS}
    assert u["initial gates"].mean() == pytest.approx(3.13, rel=0.05)
    assert u["spread"].max() <= 1e6
    assert u["spread"].log().std() == pytest.approx(3, rel=0.1)
    jumps = u["jumps"] == inputs.JUMP
    assert jumps.sum() == 2 * 2 * 3
    assert u["jumps"][~jumps].max() <= 2


def test_scan_inputs_are_routing_weights():
    """Reading weights sum to one; what is written is at most that and positive."""
    given = inputs.scan_inputs(Shape(2, 40, 3, 8), inputs.KINDS[0], generator(), torch.float32)
    assert torch.allclose(given["read"].sum(-1), torch.ones(2, 40, 3))
    assert (given["write"] > 0).all()
    assert (given["write"].sum(-1) <= 1).all()


@pytest.mark.parametrize("name", list(operators.OPERATORS))
def test_operators_take_what_the_benchmark_gives(name):
    """Arguments, options, form and number of outputs fit the public function."""
    operator = operators.OPERATORS[name]
    given = operator.make(2, 5, 3, 8, generator(), torch.float32)
    outputs, gradients, _ = agreement._run(
        operator, given, operator.exact_form(), None, generator()
    )
    assert len(outputs) == len(operator.outputs)
    assert len(gradients) == len(given) - len(operator.fixed)
    with pytest.raises(ValueError, match="choose auto or one of"):
        operator(given, "no such form")


def test_a_disagreement_is_an_error_that_names_it(monkeypatch):
    """Nothing is timed after an error above its tolerance, and NaN is one."""
    monkeypatch.setattr(agreement, "_errors", lambda *_: [("output", 1e-6), ("d u", math.inf)])
    with pytest.raises(agreement.Disagreement, match="frac_scan float32 d u inf"):
        agreement.check_all(("frac_scan",), torch.device("cpu"))
    assert agreement.relative_error(torch.tensor([math.nan]), torch.ones(1)) == math.inf


def test_goals_of_long_rows_are_twice_the_time_of_short_ones():
    """16 rows have a share of the floor as their goal, one row the time of those per token."""
    run = Run(copy_rate=4e12)
    short, long = Shape(16, 4096, 16, 128), Shape(1, 1 << 20, 16, 128)
    assert scan._goal(run, long, "fwd", False, {"ms": 1.0}) == {}
    assert scan._goal(run, short, "fwd", False, {"floor": 0.61})["met"]
    run.remembered["scan", short, "fwd"] = 0.25
    assert scan._goal(run, long, "fwd", False, {"ms": 7.9})["met"]
    assert not scan._goal(run, long, "fwd", False, {"ms": 8.1})["met"]


def test_the_plan_gives_the_ceiling(monkeypatch):
    """Where the operator says what its plan moves, the floor is compared with that."""
    module = sys.modules["fracdna_kernels.frac_scan"]
    shape = Shape(1, 65536, 4, 128)
    moved = {False: 200, True: 500}
    monkeypatch.setattr(
        module, "plan_bytes", lambda B, T, H, V, M, backward: moved[backward], raising=False
    )
    assert scan.plan_ceiling(shape, 100, backward=False) == 0.5
    assert scan.plan_ceiling(shape, 100, backward=True) == 0.2


def test_peers_are_compared_per_token():
    """Our chunk form may need smaller batches; twice the time for half the tokens is 4 times."""
    run, shape = Run(4e12), Shape(16, 4096, 16, 128)
    run.remembered["scan", shape, "fwd"] = 1.0
    row = {"peer": "chunk", "pass": "fwd", "ms": 2.0, "tokens": shape.tokens // 2}
    assert peers._beside(run, row, shape, False)["times as fast"] == pytest.approx(4)
    note = {"peer": peers.GLA, "note": "not available"}
    assert peers._beside(run, dict(note), Shape(0, 0, 0, 0), False) == note


def test_linear_operators_are_held_against_float64_first(monkeypatch):
    """Nothing is timed where an output is wrong."""
    contest = linear.CONTESTS["delta_rule"]
    for backward in (False, True):
        assert 0 < linear._error(contest, 16, generator(), backward=backward) < linear.ALLOWED
    monkeypatch.setattr(linear, "generator", lambda seed: generator())
    monkeypatch.setattr(linear, "_error", lambda *given, backward: math.nan)
    with pytest.raises(agreement.Disagreement, match="per head 64 wide"):
        list(linear.linear_rows(Run(4e12), "script"))


@pytest.mark.parametrize("name", linear.CONTESTS)
def test_linear_operators_take_what_is_timed_and_floors_count_its_bytes(name):
    """Every input read once, the output written once; backward also dO, and every gradient."""
    contest = linear.CONTESTS[name]
    given = contest.make(1, 3, 64, generator())
    with torch.no_grad():
        output, _ = contest.ours(**given)
    read, written = sum(x.nbytes for x in given.values()), output.nbytes
    floor = contest.bytes_of(64) * (3 * linear.HEADS)
    assert (floor.forward, floor.backward) == (read + written, 2 * read + written)


@pytest.mark.parametrize("quick", [False, True])
def test_linear_rows_stand_beside_their_peers(monkeypatch, quick):
    """By operator, shape and pass; what a peer refuses, or did not finish, is said."""

    def timed(run, row, calls):
        return row | {"ms": 2.0}

    def collect(script, arguments, limit):
        assert arguments == ["--worker", "linear", *(["--quick"] if quick else [])]
        row = linear._row("delta_rule", 64, 16, 4096, "fwd")
        return [row | {"ms": 3.0, "peer": "theirs", "difference": "1e-3"}], "not finished in 9 s"

    monkeypatch.setattr(Run, "timed", timed)
    monkeypatch.setattr(linear, "collect", collect)
    monkeypatch.setattr(linear, "generator", lambda seed: generator())
    monkeypatch.setattr(linear, "_error", lambda *given, backward: 1e-3)
    run = Run(4e12, quick=quick, limits={"peers": 9})
    rows = list(linear.linear_rows(run, "script"))
    found = {linear._identity(row): row for row in rows}
    assert len(found) == len(rows) == (12 if quick else 32)
    shape = "16x4096 16x64x64"
    assert found["delta_rule", shape, "fwd"]["times as fast"] == pytest.approx(1.5)
    assert found["delta_rule", shape, "fwd"]["met"]
    if quick:
        return
    assert found["delta_rule", shape, "fwd+bwd"]["peer"] == linear.REFUSED
    assert found["dplr_delta_rule", shape, "fwd+bwd"]["peer"] == "not finished in 9 s"


@pytest.mark.parametrize(
    ("kernel", "callers", "part"),
    [
        ("output_kernel", ["fracdna::frac_scan_forward"], "scan"),
        ("reduce_kernel", ["aten::sum", "fracdna::gated_rms_norm_backward"], "norms"),
        ("vectorized_elementwise_kernel", ["aten::add", "Optimizer.step#AdamW.step"], "optimizer"),
        ("nvjet_tst_128x256_64x4", ["aten::mm"], "products"),
        ("multi_tensor_apply_kernel", [], "optimizer"),
        ("nll_loss_forward_reduce_cuda_kernel_2d", [], "loss"),
        ("triton_poi_fused_add_3", [], "elementwise"),
        ("Memcpy DtoD (Device -> Device)", [], "elementwise"),
        ("something_new", [], "other"),
    ],
)
def test_kernels_belong_to_parts(kernel, callers, part):
    """By the operator that launched it, else by its name."""
    assert kernel_parts.part_of(kernel, callers) == part


def test_a_kernel_is_counted_once():
    """Those claimed by the host are not counted again on the device; annotations are no kernels."""

    def on_device(name, time):
        span = SimpleNamespace(elapsed_us=lambda: time)
        return SimpleNamespace(device_type=DeviceType.CUDA, name=name, time_range=span)

    parent = SimpleNamespace(name="fracdna::frac_gates_forward", cpu_parent=None)
    launched = SimpleNamespace(name="kernel", duration=3.0)
    host = SimpleNamespace(
        device_type=DeviceType.CPU, name="aten::x", cpu_parent=parent, kernels=[launched]
    )
    events = [
        on_device("kernel", 3.0),
        host,
        on_device("kernel", 2.0),
        on_device("Optimizer.step#AdamW.step", 9.0),
    ]
    found = kernel_parts.times_by_part(events)
    assert {part: time for part, time in found.items() if time} == {"gates": 3.0, "other": 2.0}


def test_training_steps_are_measured_with_and_without_graphs(monkeypatch):
    """Side by side for every window; a mode that fails costs its own row alone."""

    def row(run, window, mode):
        if (window, mode) == (model.WINDOWS[0], "graphs"):
            raise RuntimeError("no luck")
        return {"ms": 1.0}

    monkeypatch.setattr(model, "_step_row", row)
    rows = list(model.step_rows(Run(copy_rate=4e12, quick=True), compiled=False))
    short, long = model.WINDOWS[0], model.WINDOWS[-1]
    assert rows == [
        {"window": short, "mode": "eager", "ms": 1.0},
        {"window": short, "mode": "graphs", "note": "RuntimeError: no luck"},
        {"window": long, "mode": "eager", "ms": 1.0},
        {"window": long, "mode": "graphs", "ms": 1.0},
    ]
    assert [r["mode"] for r in model.step_rows(Run(4e12), compiled=True)] == ["compiled"] * 4


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ),
    ],
)
def test_a_measured_step_trains(monkeypatch, device):
    """The loss falls on the one batch; from graphs alike, which a device without them refuses."""
    monkeypatch.setattr(model, "BASES", 128)
    losses = {}
    for mode in ("eager", "graphs"):
        torch.manual_seed(0)
        _, step = model.training_step(64, mode, device)
        if device == "cpu" and mode == "graphs":
            with pytest.raises(InputError, match="cannot be recorded"):
                step()
        else:
            losses[mode] = [float(step()) for _ in range(3)]
    assert losses["eager"][-1] < losses["eager"][0]
    assert losses.get("graphs", losses["eager"]) == pytest.approx(losses["eager"], rel=1e-4)


def test_a_worker_out_of_time_keeps_its_rows(tmp_path):
    """Finished rows count, and the reason says what the limit was."""
    script = tmp_path / "worker.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from kernel_benchmark.worker import emit\nprint('noise')\n"
        "emit([{'ms': 1.0}])\ntime.sleep(float(sys.argv[1]))\nraise SystemExit('no luck')"
    )
    began = time.monotonic()
    rows, reason = worker.collect(str(script), ["600"], 3)
    assert (rows, reason) == ([{"ms": 1.0}], "not finished in 3 s")
    assert time.monotonic() - began < 30
    assert worker.collect(str(script), ["0"], 60) == ([{"ms": 1.0}], "failed: no luck")


def test_a_row_that_was_cut_off_is_none():
    """A worker may be stopped in the middle of a line."""
    rows, rest = worker.parse('@row {"ms": 1}\nwarning\n@row {"ms"')
    assert rows == [{"ms": 1}]
    assert rest == ["warning", "a row was cut off"]


def test_sections_are_named_on_the_command_line():
    """In the order in which they run, whatever the order asked for; unknown ones are refused."""
    assert benchmark_kernels.sections("decode,scan") == ("scan", "decode")
    with pytest.raises(argparse.ArgumentTypeError, match="speed is unknown"):
        benchmark_kernels.sections("scan,speed")
