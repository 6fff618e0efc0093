"""`fracdna generate` from its command line to the FASTA file."""

import copy

import pytest
import torch

import fracdna
from fracdna import cli
from fracdna.generation import command
from fracdna.model.checkpoint import model_hash


@pytest.fixture
def generate(checkpoint, tmp_path):
    """Run the command with progress off; returns its exit code."""

    def run(*arguments, output="out.fa", checkpoint=checkpoint):
        places = (f"checkpoint={checkpoint}", f"output={tmp_path / output}")
        return cli.run(["generate", *places, "progress=false", *arguments])

    return run


@pytest.fixture
def fasta(tmp_path):
    path = tmp_path / "seeds.fa"
    path.write_text(">one first record\nACGTNACGT\nACGTT\n>two\nggatta\n")
    return path


def read(path):
    """Headers and sequences."""
    records = path.read_text().split(">")[1:]
    return {lines[0]: "".join(lines[1:]) for lines in (record.splitlines() for record in records)}


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_records_are_continued(generate, models, fasta, tmp_path, capsys):
    """Every record `count` times: what the Python door returns, with its origin in the header."""
    assert generate(f"prompt={fasta}", "length=90", "count=2", "seed=3", "temperature=0.8") == 0
    records = read(tmp_path / "out.fa")
    drawn = "seed=3 temperature=0.8 letters=ACGT precision=float32"
    about = f"{drawn} model={model_hash(models())[:12]}"
    assert list(records) == [
        f"one_1 prompt=14 {about}", f"one_2 prompt=14 {about}",
        f"two_1 prompt=6 {about}", f"two_2 prompt=6 {about}",
    ]  # fmt: skip
    prompts = ["ACGTNACGTACGTT", "GGATTA"]
    expected = fracdna.generate(models(), prompts, 90, count=2, seed=3, temperature=0.8)
    assert list(records.values()) == expected
    assert max(map(len, (tmp_path / "out.fa").read_text().splitlines()[1:3])) == 80
    printed = capsys.readouterr().out
    assert "2 prompts, 20 bases; 2 sequences of 90 new bases each, drawn from ACGT" in printed
    assert "4 sequences, 360 new bases" in printed
    assert "tokens/s" in printed
    assert f"a state of {4 * models().backbone.state_size():,} bytes per sequence" in printed


def test_letters_may_be_typed_and_kept(generate, models, tmp_path):
    """Lower case as upper case; with_prompt writes them before the new bases."""
    assert generate("prompt=acgtn", "length=7", "temperature=0", "with_prompt=true") == 0
    (sequence,) = read(tmp_path / "out.fa").values()
    assert sequence == "ACGTN" + fracdna.generate(models(), "ACGTN", 7, temperature=0)[0]


def test_a_growing_state_is_told(generate, models, save_checkpoint, tmp_path, capsys):
    path = save_checkpoint(models("attention"), tmp_path / "attention.ckpt")
    assert generate("prompt=ACGT", "length=5", checkpoint=path) == 0
    assert "memory and time per base grow with the length" in capsys.readouterr().out


def test_the_same_run_gives_the_same_bytes(generate, fasta, tmp_path):
    for name, batch in (("one.fa", 1), ("two.fa", 64)):
        assert generate(f"prompt={fasta}", "length=30", f"batch={batch}", output=name) == 0
    assert (tmp_path / "one.fa").read_bytes() == (tmp_path / "two.fa").read_bytes()


def test_progress_shows_a_rate(checkpoint, tmp_path, capsys):
    places = (f"checkpoint={checkpoint}", f"output={tmp_path / 'out.fa'}")
    assert cli.run(["generate", *places, "prompt=ACGT", "length=20"]) == 0
    assert "base/s" in capsys.readouterr().err


@pytest.mark.parametrize("during", ["continue_sequences", "_lines"])
def test_an_interrupted_run_leaves_nothing(generate, tmp_path, monkeypatch, during):
    """Ctrl-C while bases are drawn or written: exit 130; an older file stays as it is."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(command, during, interrupt)
        assert generate("prompt=ACGT", "length=5") == 130
    assert files(tmp_path) == []
    assert generate("prompt=ACGT", "length=5") == 0
    before = (tmp_path / "out.fa").read_bytes()
    monkeypatch.setattr(command, during, interrupt)
    assert generate("prompt=ACGT", "length=6") == 130
    assert files(tmp_path) == ["out.fa"]
    assert (tmp_path / "out.fa").read_bytes() == before


def test_nan_ends_the_run(generate, models, save_checkpoint, tmp_path, capsys):
    """Exit 1, a message with the remedy, no file."""
    model = copy.deepcopy(models())
    with torch.no_grad():
        model.backbone.final_norm.weight[0] = torch.nan
    path = save_checkpoint(model, tmp_path / "broken.ckpt")
    assert generate("prompt=ACGT", checkpoint=path) == 1
    assert "nothing was written: check the weights" in capsys.readouterr().err
    assert files(tmp_path) == ["broken.ckpt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prompt=null"], "prompt= is missing: name DNA letters, or a FASTA"),
        (["prompt="], "prompt= is missing"),
        (["prompt=[ACGT,GGG]"], "prompt=['ACGT', 'GGG']: name one"),
        (["prompt=nowhere.fa"], "prompt=nowhere.fa: there is no such file, and read as DNA"),
        ([f"prompt={'ACGT' * 2000}E"], "position 8000"),
        (["prompt={text}"], "text.txt"),
        (["checkpoint=nowhere.ckpt"], "no such checkpoint file"),
        (["checkpoint=null"], "checkpoint= is missing"),
        (["output=null"], "output= is missing"),
        (["output=bases.txt"], "name it so: x.fa"),
        (["length=0"], "length=0"),
        (["length=many"], "length=many needs a whole number"),
        (["count=0"], "count=0"),
        (["temperature=-0.1"], "temperature=-0.1"),
        (["top_k=some"], "top_k=some"),
        (["top_p=1.5"], "top_p=1.5"),
        (["letters=acgt"], "letters=acgt"),
        (["device=cuda:99"], "device=cuda:99: PyTorch sees"),
        (["precision=half"], "precision=half"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_work_is_refused_before_work(
    generate, tmp_path, tmp_path_factory, capsys, arguments, message
):
    """Exit 2, one message with the remedy, nothing written."""
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("no sequence\n")
    assert generate("prompt=ACGT", *(word.format(text=text) for word in arguments)) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert files(tmp_path) == []
