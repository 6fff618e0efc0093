"""Whole contigs in one pass: any cut gives the same nats, and a kill changes nothing."""

import csv
import hashlib
import io
import json
import math
import pickle

import numpy as np
import pytest
import torch
from models import KINDS_OF_STATE, MIXERS, tiny_model
from tqdm import tqdm

from fracdna.data.objectives import next_base
from fracdna.evaluation import stream_pass, stream_report, streams
from fracdna.evaluation.likelihood import base_nll
from fracdna.evaluation.statistics import interval_95, resampled_nll
from fracdna.evaluation.stream_pass import ContigPass, StreamSettings
from fracdna.evaluation.stream_state import read_progress, with_tensors
from fracdna.outcomes import NotFinite
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval

BLOCK = 128
CPU = torch.device("cpu")
LENGTHS = {"a": 700, "b": 300, "n": 90}
SPLITS = {
    "train": [Interval("a", 0, 300), Interval("a", 200, 310, "-")],
    "test": [Interval("a", 400, 450), Interval("b", 0, 300)],
    "none": [Interval("a", 500, 600)],
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny tensors: threads that wait for each other cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Drawing takes longer than all else: only what `result` wrote, before this, has a picture."""
    monkeypatch.setattr(stream_report, "save", lambda figure, path: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Contigs of 700 bases, with a block of N and three N more, of 300, and of N alone."""
    folder = tmp_path_factory.mktemp("genome")
    bases = np.random.default_rng(0).choice(list("ACGTacgt"), 1000)
    a, b = bases[:700].copy(), bases[700:]
    a[2 * BLOCK : 3 * BLOCK] = a[5:8] = "N"
    (folder / "g.fa").write_text(f">a\n{''.join(a)}\n>b\n{''.join(b)}\n>n\n{'N' * 90}\n")
    return GenomeStore.build(folder / "g.fa", folder / "store")


@pytest.fixture(scope="module")
def models():
    """A tiny model by mixer and seed, the same one all along."""
    made = {}

    def get(mixer="frac", seed=0):
        if (mixer, seed) not in made:
            torch.manual_seed(seed)
            made[mixer, seed] = tiny_model(mixer)
        return made[mixer, seed]

    return get


def settings(segment, block=BLOCK):
    return StreamSettings(segment, block, torch.float32, CPU)


def contig_pass(model, store, folder, *, contig="a", window=None, segment=100, **options):
    window = LENGTHS[contig] if window is None else window
    options = {"weights": "w"} | options
    return ContigPass(model, "m", store, contig, window, settings(segment), folder, **options)


def run(one, advance=lambda bases: None):
    one.run(advance)
    return one.progress.sums


def evaluate(models, store, output, contigs="all", **options):
    """The whole call, with small sizes."""
    options = {
        "splits": SPLITS, "segment": 100, "block": BLOCK, "reset": {}, "device": CPU,
        "precision": torch.float32, "force": False, "progress": False,
    } | options  # fmt: skip
    return streams.evaluate_streams(models, store, contigs, output, **options)


@torch.inference_mode()
def direct(model, store, contig, window):
    """(2, bases) float64 nats of a contig, window by window, each in one forward pass."""
    ids = torch.from_numpy(store.fetch(Interval(contig, 0, LENGTHS[contig])))
    parts = []
    for part in ids.split(window):
        inputs, targets = next_base(part[None])
        parts.append(base_nll(model(inputs), targets)[:, 0].double())
    return torch.cat(parts, dim=1)


def by_block(nats):
    return torch.stack([part.sum(1) for part in nats.split(BLOCK, dim=1)], dim=1)


class Killed(BaseException):
    """What no code under test catches."""


def killer(calls):
    """Progress that ends the process, so to say, at the given call."""
    left = iter(range(calls - 1))

    def advance(bases):
        if next(left, None) is None:
            raise Killed

    return advance


@pytest.mark.parametrize("mixer", MIXERS)
def test_any_segments_give_the_whole_pass(models, store, tmp_path, monkeypatch, mixer):
    """1, 2 and 7 segments, saved between: the sums of one forward pass from the contig's start."""
    monkeypatch.setattr(stream_pass, "SAVED_SEGMENTS", 3)
    expected = by_block(direct(models(mixer), store, "a", 700))
    for segment in (700, 350, 100):
        sums = run(contig_pass(models(mixer), store, tmp_path, segment=segment))
        torch.testing.assert_close(sums, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("mixer", sorted(KINDS_OF_STATE))
def test_a_killed_pass_goes_on_as_if_nothing_had_been(models, store, tmp_path, monkeypatch, mixer):
    """To the last bit, whatever kind of state is carried, and only what is missing is read."""
    monkeypatch.setattr(stream_pass, "SAVED_SEGMENTS", 2)
    unbroken = run(contig_pass(models(mixer), store, tmp_path / "unbroken"))
    with pytest.raises(Killed):
        run(contig_pass(models(mixer), store, tmp_path), killer(6))
    resumed, read = contig_pass(models(mixer), store, tmp_path), []
    assert resumed.progress.done == 400
    assert torch.equal(run(resumed, read.append), unbroken)
    assert sum(read) == 300


@pytest.mark.parametrize("mixer", sorted(KINDS_OF_STATE))
def test_a_piece_from_the_saved_state_equals_the_pass(models, store, tmp_path, monkeypatch, mixer):
    """From the middle of a contig, in one step where the pass takes several."""
    monkeypatch.setattr(stream_pass, "SAVED_SEGMENTS", 6)
    one = contig_pass(models(mixer), store, tmp_path, segment=BLOCK // 2)
    with pytest.raises(Killed):
        run(one, killer(7))
    saved = read_progress(one.path)
    assert saved.done == 3 * BLOCK
    state = with_tensors(models(mixer).initial_state(1), iter(saved.state))
    ids = torch.from_numpy(store.fetch(Interval("a", 3 * BLOCK - 1, 5 * BLOCK)))
    inputs, targets = next_base(ids[None])
    with torch.inference_mode():
        logits, _ = models(mixer).step(inputs[:, 1:], state)
    piece = base_nll(logits, targets[:, 1:])[:, 0].double()
    torch.testing.assert_close(run(one)[:, 3:5], by_block(piece), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("window", "segment"), [(64, 64), (64, 200), (64, 10_000), (64, 30), (128, 100), (9999, 100)]
)
def test_the_control_is_the_contig_in_windows(models, store, tmp_path, window, segment):
    """Batched or in segments, with a shorter window at the end, across saves and blocks."""
    expected = by_block(direct(models(), store, "a", window))
    sums = run(contig_pass(models(), store, tmp_path, window=window, segment=segment))
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=0)


def test_memory_does_not_grow_with_the_contig(models, store, tmp_path, monkeypatch):
    """What is read and what is saved at a time have the same size all along."""
    monkeypatch.setattr(stream_pass, "SAVED_SEGMENTS", 2)
    widths, sizes = [], []
    fetch, write = GenomeStore.fetch, stream_pass.write_progress
    monkeypatch.setattr(
        GenomeStore, "fetch", lambda self, i: (widths.append(i.width), fetch(self, i))[1]
    )
    monkeypatch.setattr(
        stream_pass,
        "write_progress",
        lambda path, p: (sizes.append(sum(x.numel() for x in p.state)), write(path, p))[1],
    )
    run(contig_pass(models(), store, tmp_path, segment=50))
    assert widths == [100, *[101] * 6]
    assert len(set(sizes[:-1])) == 1
    assert sizes[-1] == 0


def test_a_growing_state_is_read_in_short_pieces(models, store, tmp_path, monkeypatch):
    """The mask of a step is bounded; the nats are those of the whole pass."""
    monkeypatch.setattr(stream_pass, "_PAIRS", 700 * 40)
    read = []
    sums = run(contig_pass(models("attention"), store, tmp_path, grows=True), read.append)
    assert max(read) == 40
    expected = by_block(direct(models("attention"), store, "a", 700))
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=0)


def test_a_finished_pass_is_read_and_force_computes_again(models, store, tmp_path):
    read = []
    first = run(contig_pass(models(), store, tmp_path))
    again = contig_pass(models(), store, tmp_path)
    assert torch.equal(run(again, read.append), first)
    assert read == []
    forced = contig_pass(models(), store, tmp_path, force=True)
    assert torch.equal(run(forced, read.append), first)
    assert sum(read) == 700


def test_the_rate_counts_what_is_computed(models, store, tmp_path, monkeypatch):
    """What an earlier run has finished moves the bar, and not its bases a second."""
    bars = []

    def bar(total, name, shown):
        bars.append(tqdm(total=total, file=io.StringIO()))
        return bars[-1]

    monkeypatch.setattr(streams, "progress_bar", bar)
    evaluate({"m": models()}, store, tmp_path, ["b"])
    evaluate({"m": models()}, store, tmp_path, ["a", "b"])
    assert [(bar.initial, bar.n, bar.total) for bar in bars] == [(0, 300, 300), (300, 1000, 1000)]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "state"])
def test_a_damaged_file_is_computed_again(models, store, tmp_path, damage):
    one = contig_pass(models(), store, tmp_path)
    sums = run(one)
    content = bytearray(one.path.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    kept = {"cut": content[:middle], "flipped": content, "empty": b"", "state": content[32:]}
    one.path.write_bytes(kept[damage])
    again = contig_pass(models(), store, tmp_path)
    assert again.progress.done == 0
    assert torch.equal(run(again), sums)


def test_a_file_is_data_and_never_code(models, store, tmp_path):
    """Even with a valid digest nothing in it is called."""
    called = tmp_path / "called"

    class Touch:
        def __reduce__(self):
            return called.touch, ()

    buffer = io.BytesIO()
    torch.save(Touch(), buffer, pickle_module=pickle)
    one = contig_pass(models(), store, tmp_path)
    digest = hashlib.sha256(buffer.getvalue()).digest()
    one.path.write_bytes(digest + buffer.getvalue())
    assert contig_pass(models(), store, tmp_path).progress.done == 0
    assert not called.exists()


def test_other_work_never_reads_this_file(models, store, tmp_path):
    """Weights, contig, window, segment, block and compute type each have files of their own."""
    path = contig_pass(models(), store, tmp_path).path
    short = contig_pass(models(), store, tmp_path, window=64).path
    low = StreamSettings(100, BLOCK, torch.bfloat16, CPU)
    wide = StreamSettings(100, 2 * BLOCK, torch.float32, CPU)
    common = models(), "m", store, "a", 700
    others = [
        contig_pass(models(), store, tmp_path, weights="v").path,
        contig_pass(models(), store, tmp_path, contig="b", window=64).path,
        contig_pass(models(), store, tmp_path, segment=50).path,
        ContigPass(*common, low, tmp_path, weights="w").path,
        ContigPass(*common, wide, tmp_path, weights="w").path,
    ]
    assert len({path, short, *others}) == 7


def test_another_genome_never_reads_this_file(models, store, tmp_path):
    (tmp_path / "g.fa").write_text(f">a\n{'ACGTT' * 140}\n")
    other = GenomeStore.build(tmp_path / "g.fa", tmp_path / "store")
    paths = {contig_pass(models(), one, tmp_path).path for one in (store, other)}
    assert len(paths) == 2


@pytest.fixture(scope="module")
def result(models, store, tmp_path_factory):
    """Two models on all contigs, one of them with a control, and where it was written."""
    output = tmp_path_factory.mktemp("results")
    pair = {"one": models("frac", 0), "two": models("frac", 1)}
    return evaluate(pair, store, output, reset={"one": 64, "two": None}), output


def test_blocks_sum_to_the_contig_and_contigs_to_all(models, store, result):
    """Bases counted, N skipped, nats and perplexities against direct sums."""
    found, _ = result
    rows = {(row["model"], row["contig"]): row for row in found["rows"]}
    assert set(rows) == {(m, c) for m in ("one", "two") for c in ("a", "b", "n", "all")}
    for seed, model in enumerate(("one", "two")):
        total = 0.0
        for contig, counted in (("a", 700 - BLOCK - 3), ("b", 300)):
            row = rows[model, contig]
            nats, acgt = direct(models("frac", seed), store, contig, LENGTHS[contig]).sum(1)
            assert (row["bases"], row["n_skipped"]) == (counted, LENGTHS[contig] - counted)
            assert row["nll_nats"] == pytest.approx(nats.item() / counted, rel=1e-5)
            assert row["perplexity"] == pytest.approx(math.exp(row["nll_nats"]))
            assert row["perplexity_acgt"] == pytest.approx(math.exp(acgt / counted), rel=1e-5)
            assert row["perplexity_low"] < row["perplexity"] < row["perplexity_high"]
            blocks = [b for b in found["blocks"] if (b["model"], b["contig"]) == (model, contig)]
            assert sum(b["bases"] for b in blocks) == counted
            summed = sum(b["bases"] * b["nll_nats"] for b in blocks if b["bases"])
            assert summed == pytest.approx(row["nll_nats"] * counted)
            total += summed
        everything = rows[model, "all"]
        assert everything["length"] == sum(LENGTHS.values())
        assert everything["nll_nats"] * everything["bases"] == pytest.approx(total)


def test_what_holds_no_base_has_no_number(result):
    """A block and a contig of N: counted as skipped, empty in the table, no NaN in the JSON."""
    found, output = result
    with (output / "streams.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [
        "model", "contig", "start", "end", "bases", "nll_nats", "nll_reset", "perplexity",
        "perplexity_reset",
    ]  # fmt: skip
    mine = [line for line in lines if line["model"] == "one" and line["contig"] == "a"]
    assert [(int(line["start"]), int(line["end"])) for line in mine] == [
        (0, 128), (128, 256), (256, 384), (384, 512), (512, 640), (640, 700),
    ]  # fmt: skip
    empty = mine[2]
    assert (empty["bases"], empty["nll_nats"], empty["perplexity_reset"]) == ("0", "", "")
    assert all(line["nll_reset"] for line in mine if line is not empty)
    assert {line["nll_reset"] for line in lines if line["model"] == "two"} == {""}
    row = next(row for row in found["rows"] if row["contig"] == "n")
    assert (row["bases"], row["n_skipped"], row["nll_nats"], row["gain_nats"]) == (
        0,
        90,
        None,
        None,
    )
    json.dumps(found, allow_nan=False)


def test_gain_and_difference_are_paired_by_block(models, store, result):
    """Against direct sums; their intervals resample the same blocks for both."""
    found, _ = result
    one, two = (by_block(direct(models("frac", seed), store, "a", 700))[0] for seed in (0, 1))
    reset = by_block(direct(models("frac", 0), store, "a", 64))[0]
    tokens = np.array([125, 128, 128, 128, 60])
    for row, low, high, sums in (
        (
            next(r for r in found["rows"] if (r["model"], r["contig"]) == ("one", "a")),
            "gain_low", "gain_high", reset - one,
        ),
        (
            next(d for d in found["differences"] if d["contig"] == "a"), "low", "high", one - two
        ),
    ):  # fmt: skip
        sums = np.delete(sums.numpy(), 2)
        value = row["gain_nats"] if low == "gain_low" else row["nll_nats"]
        assert value == pytest.approx(sums.sum() / tokens.sum(), abs=2e-6)
        expected = interval_95(resampled_nll(sums, tokens))
        assert (row[low], row[high]) == pytest.approx(expected, abs=2e-6)
        assert row[low] < value < row[high]
    pairs = [(d["model"], d["minus"], d["contig"]) for d in found["differences"]]
    assert pairs == [("one", "two", contig) for contig in ("a", "b", "n", "all")]


def test_a_control_as_long_as_the_contig_is_the_same_pass(models, store, tmp_path):
    """The gain is 0 exactly, and nothing is read twice."""
    found = evaluate({"m": models()}, store, tmp_path, ["b"], block=512, reset={"m": 512})
    row = found["rows"][0]
    assert row["gain_nats"] == 0
    assert row["nll_reset"] == row["nll_nats"]
    assert (row["perplexity_low"], row["gain_low"]) == (None, None)  # one block has no interval
    assert len(list((tmp_path / "cells").iterdir())) == 1


def test_the_table_tells_what_was_done(models, store, tmp_path, capsys, monkeypatch):
    """Counts, perplexities, the missing control and its remedy; few of many contigs."""
    monkeypatch.setattr(stream_report, "SHOWN", 2)
    pair = {"one": models("frac", 0), "two": models("frac", 1)}
    found = evaluate(pair, store, tmp_path, reset={"one": 64})
    printed = capsys.readouterr().out
    assert "one pass, forward strand, segments of 100 bases" in printed
    assert (
        "a: 700 bases, 569 counted, 131 N skipped\n"
        + (
            "  of these 253 in split train (seen in training by models of this prepared folder), "
            "50 in split test, 266 in no split\none "
        )
        in printed
    )
    assert (
        "all (3 contigs pooled): 1,090 bases, 869 counted, 221 N skipped\n  of these 253 "
        in printed
    )
    assert "350 in split test, 266 in no split" in printed
    assert found["bases_by_split"] == {
        "a": {"train": 253, "valid": 0, "test": 50, "none": 266},
        "b": {"train": 0, "valid": 0, "test": 300, "none": 0},
        "n": {"train": 0, "valid": 0, "test": 0, "none": 0},
        "all": {"train": 253, "valid": 0, "test": 350, "none": 266},
    }
    row = found["rows"][0]
    assert f"{row['perplexity']:.4f} [{row['perplexity_low']:.4f}, " in printed
    assert f"{row['perplexity_reset']:.4f} every 64" in printed
    assert "no control for two: " in printed
    assert "no control for one" not in printed
    assert "2 shorter contigs" in printed
    assert "b: 300 bases" not in printed


def test_the_picture_breaks_at_n(models, store, result, monkeypatch):
    """A panel a contig, a line a model and one for its control, no point in a block of N."""
    found, output = result
    assert (output / "streams.png").read_bytes().startswith(b"\x89PNG")
    blocks = [b for b in found["blocks"] if (b["model"], b["contig"]) == ("one", "a")]
    tokens = np.array([b["bases"] for b in blocks])
    nats = np.array([(b["nll_nats"] or 0) * b["bases"] for b in blocks])
    starts, ends = (np.array([b[side] for b in blocks]) for side in ("start", "end"))
    scores = [
        stream_report.StreamScores(
            "one", contig, starts, ends, tokens, nats, nats, 64, nats, None, None
        )
        for contig in ("a", "$b")
    ]
    figure = stream_report.streams_figure(scores, BLOCK)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "$b"]
    carried, _ = figure.axes[0].lines
    assert np.isnan(carried.get_ydata()).tolist() == [False, False, True, False, False, False]
    assert carried.get_ydata()[0] == pytest.approx(blocks[0]["perplexity"])
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["one", "one, reset every 64"]
    monkeypatch.setattr(stream_report, "SHOWN", 1)
    few = stream_report.streams_figure(scores, BLOCK)
    assert len(few.axes) == 1
    assert "1 shorter contig" in few.axes[0].get_xlabel()


def test_bf16_is_close(models, store, tmp_path):
    rows = [
        evaluate({"m": models()}, store, tmp_path, ["b"], precision=precision)["rows"][0]
        for precision in (torch.float32, torch.bfloat16)
    ]
    assert rows[0]["nll_nats"] != rows[1]["nll_nats"]
    assert rows[0]["nll_nats"] == pytest.approx(rows[1]["nll_nats"], rel=2e-2)


def test_a_weight_that_is_no_number_names_contig_and_place(store, tmp_path):
    model = tiny_model("frac")
    model.backbone.final_norm.weight.data[0] = torch.nan
    with pytest.raises(NotFinite, match="m: b:1-100 in a pass over the contig: the likelihood"):
        evaluate({"m": model}, store, tmp_path, ["b"])
    assert not (tmp_path / "streams.csv").exists()


@pytest.mark.parametrize(
    ("contigs", "options", "message"),
    [
        (["a", "x"], {}, "contig 'x' is not in the genome, whose contigs are a, b, n"),
        ([], {}, "name contigs of the genome"),
        (["a"], {"segment": 0}, "batch_bases=0"),
        (["a"], {"block": 0}, "stream_block=0"),
        (["a"], {"reset": {"m": 48}}, "every 48 bases, which do not divide stream_block=128"),
        (["a"], {"reset": {"m": 0}}, "every 0 bases"),
    ],
)
def test_refusals_come_before_any_work(models, store, tmp_path, contigs, options, message):
    with pytest.raises(InputError, match=message):
        evaluate({"m": models()}, store, tmp_path / "results", contigs, **options)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("mixer", ["attention", "interleaved", "hyena", "frac"])
def test_a_growing_state_reads_short_contigs_alone(
    models, store, tmp_path, monkeypatch, capsys, mixer
):
    """Attention is warned of on a short contig and refused on a longer one; others read both."""
    monkeypatch.setattr(streams, "LONGEST_CACHE", 300)
    grows = mixer in ("attention", "interleaved")
    evaluate({"m": models(mixer)}, store, tmp_path / "short", ["b"])
    assert ("the state of m grows with every base" in capsys.readouterr().err) == grows
    if grows:
        with pytest.raises(InputError, match=r"streams=a: the state of m grows.* at most 300"):
            evaluate({"m": models(mixer)}, store, tmp_path / "long", ["a", "b"])
        assert not (tmp_path / "long").exists()
    else:
        evaluate({"m": models(mixer)}, store, tmp_path / "long", ["a", "b"])


def test_a_state_that_cannot_be_kept_is_refused():
    with pytest.raises(TypeError, match="a model's state holds a int"):
        with_tensors([(torch.zeros(1), 3)], iter([torch.ones(1)]))
