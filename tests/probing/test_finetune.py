"""Fine-tuning: what is trained, chosen, kept and gone on with."""

import json

import numpy as np
import pytest
import torch
from models import tiny_model

import fracdna
from fracdna.embedding.options import EmbeddingOptions
from fracdna.probing import finetune
from fracdna.probing.finetune import Classifier, FineTuning
from fracdna.training.saving import Interrupted
from fracdna_prep.vocabulary import DNA

FAST = (
    "method=finetune", "seeds=[0]", "epochs=3", "batch_size=8", "l2=[0.01]", "max_k=1",
    "untrained=false", "learning_rates=[0.004]",
)  # fmt: skip


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """A network of one layer, which trains in no time."""
    path = tmp_path_factory.mktemp("light") / "tiny.safetensors"
    torch.manual_seed(0)
    network = tiny_model("attention", "model.num_layers=1")
    fracdna.save_weights(network, path, dtype=torch.float32)
    return path


def chosen(folder):
    return json.loads((folder / "result.json").read_text())["models"]["tiny"]


@pytest.fixture
def seen(monkeypatch):
    """Probabilities of the test rows after every epoch, beside what the run does anyway."""
    kept, ended = [], FineTuning.on_validation_epoch_end

    def spy(module):
        ended(module)
        kept.append(module.probabilities(np.flatnonzero(module.data.splits == "test")))
        module.train()

    monkeypatch.setattr(FineTuning, "on_validation_epoch_end", spy)
    return kept


@pytest.mark.parametrize("pooling", ["mean", "centre", "last"])
@pytest.mark.parametrize("strand", ["forward", "average", "equivariant"])
def test_padding_changes_no_logit(model, random_letters, pooling, strand):
    """A sequence alone, and beside one of five times its length; gradients reach the embedding."""
    options = EmbeddingOptions(layer=1, pooling=pooling, strand=strand)
    classifier = Classifier(model.backbone, 3, options)
    short, long = (DNA.encode(random_letters(length, length)) for length in (11, 55))
    alone, both = classifier([short]), classifier([long, short])
    assert torch.allclose(alone[0], both[1], atol=1e-5)
    (gradient,) = torch.autograd.grad(both[1].sum(), model.backbone.embedding.weight)
    assert gradient[list(DNA.bases)].abs().min() > 0
    assert gradient[DNA.pad].abs().max() == 0


def test_both_strands_reach_the_head(model, random_letters):
    """Side by side, as fracdna.embed has them: the head sees the halves, not their mean."""
    options = EmbeddingOptions(strand="equivariant")
    classifier = Classifier(model.backbone, 3, options)
    text = random_letters(11, 1)
    vectors = torch.from_numpy(fracdna.embed(model, [text], strand="equivariant", device="cpu"))
    expected = classifier.head(vectors)
    torch.testing.assert_close(classifier([DNA.encode(text)]), expected, atol=1e-5, rtol=1e-5)


def test_a_motif_is_learned_and_the_best_epoch_is_what_counts(
    probe, light, planted, write_table, tmp_path, seen
):
    """The epoch with the least validation gives the probabilities, not the last one."""
    write_table(tmp_path / "set_train.csv", planted(192, 1))
    write_table(tmp_path / "set_dev.csv", [(text, "10"[int(y)]) for text, y in planted(8, 3)])
    write_table(tmp_path / "set_test.csv", planted(20, 2))
    words = (f"checkpoint={light}", f"dataset={tmp_path / 'set'}", *FAST)
    assert probe(*words) == 0
    # the labels of dev are turned round: the better the network, the worse its validation
    nll = chosen(tmp_path / "out")["validation_nll"][0][0]
    assert len(nll) == len(seen) == 3
    best = int(np.argmin(nll))
    assert chosen(tmp_path / "out")["epoch"] == [best + 1]
    assert best < 2
    kept = [np.load(path) for path in (tmp_path / "out" / "fits").glob("*.npz")]
    (tuned,) = [content["probabilities"] for content in kept if "converged" not in content]
    np.testing.assert_allclose(tuned, seen[best], atol=1e-6)
    labels = np.arange(20) % 2
    assert np.mean(seen[-1].argmax(1) == labels) > 0.75


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    probe, light, small_set, tmp_path, monkeypatch
):
    """Stopped within the third epoch: two are kept, and the end is that of an unbroken run."""
    words = (f"checkpoint={light}", f"dataset={small_set}", *FAST)
    assert probe(*words, output="whole") == 0
    step, steps = FineTuning.training_step, []

    def stopping(module, positions, batch_idx):
        steps.append(module.current_epoch)
        if len(steps) == 2 * 3 + 1:
            raise Interrupted(saved=True)
        return step(module, positions, batch_idx)

    monkeypatch.setattr(FineTuning, "training_step", stopping)
    assert probe(*words) == 130
    assert not (tmp_path / "out" / "result.json").exists()
    del steps[:]
    assert probe(*words) == 0
    assert set(steps) == {2}
    tables = [(tmp_path / name / "table.csv").read_bytes() for name in ("out", "whole")]
    assert tables[0] == tables[1]
    assert not list((tmp_path / "out").rglob("*.ckpt"))
    monkeypatch.setattr(finetune, "_train", lambda *_: pytest.fail("trained again"))
    assert probe(*words) == 0


def test_it_stops_when_validation_gets_no_better(
    probe, light, random_letters, write_table, tmp_path
):
    """Labels without sense: patience ends it long before the last epoch."""
    rows = [(random_letters(12, [7, n]), str(n % 2)) for n in range(28)]
    write_table(tmp_path / "set_train.csv", rows[:20])
    write_table(tmp_path / "set_test.csv", rows[20:])
    words = (f"checkpoint={light}", f"dataset={tmp_path / 'set'}", *FAST)
    assert probe(*words, "epochs=40", "patience=2", "learning_rates=[0.02]") == 0
    nll = chosen(tmp_path / "out")["validation_nll"][0][0]
    assert len(nll) == int(np.argmin(nll)) + 1 + 2 < 40


@pytest.mark.slow
def test_steps_are_the_same_whatever_fits_a_pass(probe, light, small_set, tmp_path):
    """Gradients of smaller passes add up to those of a whole batch."""
    words = (f"checkpoint={light}", f"dataset={small_set}", *FAST, "epochs=2")
    assert probe(*words) == 0
    assert probe(*words, "batch_bases=90", output="small") == 0
    nll = [chosen(tmp_path / name)["validation_nll"][0][0] for name in ("out", "small")]
    np.testing.assert_allclose(*nll, rtol=1e-3)


def test_every_rate_diverges(probe, light, small_set, monkeypatch, capsys):
    """Exit code 1 and the remedy."""
    monkeypatch.setattr(
        FineTuning,
        "_loss",
        lambda self, positions: (
            self.classifier.head.weight.sum() * torch.full((len(positions),), torch.nan)
        ),
    )
    words = (f"checkpoint={light}", f"dataset={small_set}", *FAST)
    assert probe(*words) == 1
    assert "give smaller ones with learning_rates=" in capsys.readouterr().err


def test_sequences_beyond_one_pass_are_refused(probe, light, small_set, capsys):
    assert probe(f"checkpoint={light}", f"dataset={small_set}", *FAST, "segment=20") == 2
    assert "one has 40 bases" in capsys.readouterr().err
