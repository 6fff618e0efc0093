"""The benchmark of training steps, as far as it needs no GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import benchmark_training as benchmark

CASES = [("frac", 64), ("gla", 64), ("gdn", 64)]


def options(**changed):
    given = {
        "experiment": "dna_tiny", "bases": 128, "row_seconds": 0.01, "case_seconds": 20.0,
        "seconds": 60.0, "prepared": None, "loader_length": 1024, "workers": 0,
    }  # fmt: skip
    return SimpleNamespace(**given | changed)


def test_a_case_is_timed_and_a_failing_one_says_why():
    """A row has speed and memory, or its reason; neither ends the others."""
    row = benchmark.timed_case(("retnet", 64), options())
    assert row["bases_per_s"] == pytest.approx(128 / row["ms"] * 1e3)
    assert row["steps"] >= 5
    assert row["peak_gib"] > 0
    assert row["parameters"] > 100_000
    assert "note" not in row
    failed = benchmark.timed_case(("retnet", 64), options(experiment="dna_huge"))
    assert failed["note"].startswith("InputError: ")
    assert "bases_per_s" not in failed


def test_the_model_is_that_of_the_mixer_and_the_length():
    """A filter of Hyena is as long as the window; nothing is recomputed."""
    from fracdna.configuration import compose_configuration

    words = benchmark.overrides("dna_tiny", ("hyena", 128))
    config = compose_configuration("train", words)
    assert config.model.mixer.window == 128
    assert config.model.activation_checkpointing is False


@pytest.fixture
def workers(monkeypatch):
    """Workers that run a few lines instead of a model: `what` becomes of a mixer."""

    def become(what):
        def start(arguments, worker, output):
            cases = json.loads(worker.partition(":")[2])
            lines = ["import sys, time"]
            for mixer, length in cases:
                lines += what.get(mixer, [])
                row = json.dumps({"mixer": mixer, "length": length, "bases_per_s": 1.0})
                lines.append(f"print({benchmark.MARK + row!r}, flush=True)")
            command = [sys.executable, "-c", "\n".join(lines)]
            error = subprocess.STDOUT
            return subprocess.Popen(command, stdout=output, stderr=error, text=True)

        monkeypatch.setattr(benchmark, "start", start)

    return become


def test_a_process_that_dies_costs_its_own_row_alone(workers):
    """A fresh one goes on behind it."""
    workers({"gla": ["sys.exit('the device is lost')"]})
    rows = list(benchmark.measured(CASES, options(), time.monotonic() + 60))
    assert [row["mixer"] for row in rows] == ["frac", "gla", "gdn"]
    assert [row.get("note") for row in rows] == [None, "failed: the device is lost", None]


def test_a_case_without_end_is_given_up(workers):
    """After its own limit, and the next one follows."""
    workers({"gla": ["time.sleep(60)"]})
    rows = list(benchmark.measured(CASES, options(case_seconds=2), time.monotonic() + 60))
    assert [row.get("note") for row in rows] == [None, "not finished in 2 s", None]


def test_when_time_is_over_the_rest_is_named(workers):
    workers({})
    rows = list(benchmark.measured(CASES, options(seconds=7), time.monotonic() - 1))
    assert [row["note"] for row in rows] == ["not reached in 7 s"] * 3


def test_warming_takes_each_case_once_and_ends_at_its_limit(monkeypatch):
    """Neighbours in time have different mixers; a process that hangs is killed."""
    given = []

    def start(arguments, worker, output):
        given.append(json.loads(worker.partition(":")[2]))
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        return subprocess.Popen(command, stdout=output, stderr=output)

    monkeypatch.setattr(benchmark, "start", start)
    cases = [(mixer, length) for mixer in ("a", "b") for length in (64, 128)]
    seconds = benchmark.warm(
        cases, options(warm_processes=3, warm_seconds=0.2), time.monotonic() + 60
    )
    assert seconds < 10
    assert given == [[["a", 64], ["b", 128]], [["b", 64]], [["a", 128]]]


def result():
    rows = []
    for mixer, speed in (("frac", 3e6), ("gdn", 1.5e6), ("gla", None)):
        row = {"mixer": mixer, "length": 1024}
        row |= {"bases_per_s": speed, "peak_gib": 7.5} if speed else {"note": "no memory"}
        rows.append(benchmark.beside_first(row, rows))
    return {"rows": rows, "loader": {"bases_per_s": 4e8, "workers": 4}}


def test_tables_compare_with_the_first_mixer():
    lines = benchmark.tables(result()).splitlines()
    assert "| gdn | 1.50 |" in lines
    assert "| gdn | 2.00 |" in lines
    assert "| gla |  |" in lines
    assert "| gla | 1,024 | no memory |" in lines


def test_the_picture_shows_what_was_measured(tmp_path):
    benchmark.draw(tmp_path / "training.png", result())
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


def test_the_loader_is_read_by_itself(prepared):
    """From a prepared folder, or from the bundled example."""
    row = benchmark.loader_row(options(prepared=prepared, loader_length=64))
    assert row["bases_per_s"] > 0
    assert benchmark.loader_row(options(loader_length=65_536, bases=65_536))["bases_per_s"] > 0
    missing = benchmark.loader_row(options(prepared=prepared, loader_length=100))
    assert "no windows of 100 bases" in missing["note"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mixers", "frac,colour"], "no such mixer: colour"),
        (["--lengths", "100"], "not a multiple"),
        (["--lengths", "0"], "at least 1"),
        (["--output", "/nowhere/at/all.json"], "no such folder"),
    ],
)
def test_wrong_arguments_are_refused_first(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["benchmark_training.py", *words])
    with pytest.raises(SystemExit):
        benchmark.command_line()
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_benchmark_runs_on_a_processor(tmp_path):
    """Warms, reads, times, and leaves JSON, tables and picture."""
    output = tmp_path / "training.json"
    words = [
        "--mixers", "frac,attention", "--lengths", "64,128", "--bases", "256", "--workers", "2",
        "--experiment", "dna_tiny", "--row-seconds", "0.1", "--warm-processes", "2",
        "--output", output, "--commit", "this one",
    ]  # fmt: skip
    subprocess.run([sys.executable, benchmark.SCRIPT, *words], check=True)
    found = json.loads(output.read_text())
    assert found["circumstances"]["commit"] == "this one"
    cases = [(row["mixer"], row["length"]) for row in found["rows"]]
    assert cases == [("frac", 64), ("frac", 128), ("attention", 64), ("attention", 128)]
    assert all(row["frac is times as fast"] > 0 for row in found["rows"])
    assert found["loader"]["bases_per_s"] > 0
    assert output.with_suffix(".png").exists()
    assert "| attention |" in output.with_suffix(".md").read_text()
