import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fracdna.data.datamodule import open_prepared
from fracdna.data.dataset import WindowDataset, as_is
from fracdna.data.objectives import IGNORED, next_base
from fracdna.data.order import StepBatches, strand_choice
from fracdna_prep.options import PrepareOptions
from fracdna_prep.prepare import prepare
from fracdna_prep.vocabulary import DNA


def samples(batches):
    return [sample for batch in batches for sample in batch]


def test_every_window_is_seen_once_an_epoch_also_across_batches():
    """Five windows in batches of two over two epochs: each once per epoch, in new orders."""
    seen = samples(StepBatches(5, seed=1, size=2, total=5))
    for epoch in (0, 1):
        assert sorted(index for e, index in seen if e == epoch) == [0, 1, 2, 3, 4]
    first, second = ([i for e, i in seen if e == epoch] for epoch in (0, 1))
    assert first != second
    assert seen != samples(StepBatches(5, seed=2, size=2, total=5))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_devices_share_one_list(devices):
    """The batch of a step is the same set of samples, however many devices split it."""
    alone = list(StepBatches(37, seed=3, size=8, total=9))
    shares = [
        list(StepBatches(37, seed=3, size=8 // devices, total=9, devices=devices, rank=rank))
        for rank in range(devices)
    ]
    for step in range(9):
        assert [s for share in shares for s in share[step]] == alone[step]


def test_a_start_in_the_middle_gives_the_rest():
    batches = StepBatches(7, seed=0, size=3, total=10)
    whole = list(batches)
    batches.start = 4
    assert list(batches) == whole[4:]
    assert len(batches) == 10


def test_strands_are_fair_and_differ_between_epochs_and_seeds():
    """Half of the samples turn; two epochs, and two seeds, agree on half of them."""
    index = np.arange(40_000)
    turns = {
        (seed, epoch): strand_choice(seed, np.full(len(index), epoch), index)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    for turn in turns.values():
        assert abs(turn.mean() - 0.5) < 0.01
    first = turns[0, 0]
    for other in list(turns.values())[1:]:
        assert abs((first == other).mean() - 0.5) < 0.01
    assert abs((first[1:] == first[:-1]).mean() - 0.5) < 0.01


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
def test_workers_read_what_one_process_reads(prepared, workers, context):
    """Case 46: strands are a function of (seed, epoch, index): 0 and 2 workers agree."""
    store, table = open_prepared(prepared, 64)
    data = WindowDataset(store, table, "train", seed=9, reverse_complement=True)
    batches = list(StepBatches(len(data), seed=9, size=4, total=6))
    expected = [data.__getitems__(batch)["ids"] for batch in batches]
    loader = DataLoader(
        data,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=as_is,
        multiprocessing_context=context,
    )
    assert all(torch.equal(b["ids"], e) for b, e in zip(loader, expected, strict=True))


def test_reverse_complement_turns_bases_and_mask_together(tmp_path):
    """Of windows with lower-case stretches and of one that is padded at its contig's end."""
    (tmp_path / "g.fa").write_text(">c\n" + "ACGTTacgga" * 20 + "\n>d\n" + "acGGT" * 6 + "\n")
    (tmp_path / "s.bed").write_text("c\t0\t200\ttrain\nd\t0\t30\ttrain\n")
    prepare(
        PrepareOptions(
            fasta=tmp_path / "g.fa",
            intervals=tmp_path / "s.bed",
            length=[32],
            policy="pad",
            output=tmp_path / "p",
            progress=False,
        )
    )
    store, table = open_prepared(tmp_path / "p", 32)
    forward = WindowDataset(store, table, "train", soft_mask=True)
    both = WindowDataset(store, table, "train", seed=4, reverse_complement=True, soft_mask=True)
    count = len(forward)
    turned = strand_choice(4, np.zeros(count, dtype=int), np.arange(count))
    assert 0 < turned.sum() < count
    for index in range(count):
        plain, other = forward[(0, index)], both[(0, index)]
        ids, mask = plain["ids"][0].numpy(), plain["soft_mask"][0].numpy()
        assert mask.any()
        assert not mask[ids == DNA.pad].any()
        if turned[index]:
            ids, mask = DNA.reverse_complement(ids), mask[::-1]
        assert np.array_equal(other["ids"][0].numpy(), ids)
        assert np.array_equal(other["soft_mask"][0].numpy(), mask)


def test_targets_are_the_bases_and_inputs_start_with_bos():
    """[BOS, x1 .. x(L-1)] predicts x1 .. xL; N, PAD and specials are never counted."""
    ids = torch.tensor([[DNA.pad, 7, 8, DNA.n, 9, 10, DNA.unk]], dtype=torch.uint8)
    inputs, targets = next_base(ids)
    assert inputs.tolist() == [[DNA.bos, DNA.pad, 7, 8, DNA.n, 9, 10]]
    assert targets.tolist() == [[IGNORED, 7, 8, IGNORED, 9, 10, IGNORED]]
