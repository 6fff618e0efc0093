import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fracdna.data.datamodule import WindowData, open_prepared, require_tables
from fracdna.data.dataset import StagedWindows, WindowDataset, as_is
from fracdna.data.objectives import IGNORED, next_base
from fracdna.data.order import StagedBatches, StepBatches, stage_seed, strand_choice
from fracdna_prep.errors import InputError
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


def staged(devices=1, rank=0):
    """Three stages: one ends in the middle of its first epoch, one spans several."""
    return StagedBatches(
        [
            StepBatches(
                windows, seed=3, size=size // devices, total=total, devices=devices, rank=rank
            )
            for windows, size, total in ((37, 8, 3), (5, 4, 6), (9, 2, 4))
        ]
    )


def test_stages_follow_one_another_each_with_its_own_epochs():
    """The samples of a stage are those of its own list; batches never mix two stages."""
    batches = list(staged())
    assert [{stage for stage, *_ in batch} for batch in batches] == [{0}] * 3 + [{1}] * 6 + [
        {2}
    ] * 4
    assert [len(batch) for batch in batches] == [8] * 3 + [4] * 6 + [2] * 4
    alone = samples(StepBatches(5, seed=3, size=4, total=6))
    assert [sample[1:] for batch in batches[3:9] for sample in batch] == alone


@pytest.mark.parametrize("start", range(14))
def test_a_start_in_any_stage_gives_the_rest(start):
    """At its borders too; a list may be read several times."""
    batches = staged()
    whole = list(batches)
    batches.start = start
    assert list(batches) == whole[start:]
    assert len(batches) == len(whole) == 13
    batches.start = 0
    assert list(batches) == whole


def test_devices_share_the_list_of_every_stage():
    alone, shares = list(staged()), [list(staged(2, rank)) for rank in range(2)]
    for step, batch in enumerate(alone):
        assert [s for share in shares for s in share[step]] == batch


def test_stages_of_one_length_show_different_windows_first():
    """The last stage has the seed of a run without stages, and no other run has that of another."""
    seeds = [stage_seed(seed, left) for seed in (0, 1, 2**32 - 1) for left in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert stage_seed(7, 0) == 7
    first, second = (
        samples(StepBatches(50, seed=stage_seed(7, n), size=8, total=1)) for n in (0, 1)
    )
    assert first != second
    index = np.arange(4000)
    turns = [strand_choice(stage_seed(7, n), np.zeros(4000, dtype=int), index) for n in (0, 1)]
    assert abs((turns[0] == turns[1]).mean() - 0.5) < 0.05


def test_a_batch_is_read_from_the_table_of_its_stage(prepared):
    tables = [open_prepared(prepared, length) for length in (64, 256)]
    stages = [WindowDataset(*table, "train", seed=n, reverse_complement=True) for n, table in
              enumerate(tables)]  # fmt: skip
    windows = StagedWindows(stages)
    assert len(windows) == sum(map(len, stages))
    for stage, length in enumerate((64, 256)):
        batch = windows.__getitems__([(stage, 1, 3), (stage, 1, 8)])["ids"]
        assert batch.shape == (2, length)
        assert torch.equal(batch, stages[stage].__getitems__([(1, 3), (1, 8)])["ids"])
        assert torch.equal(windows[stage, 1, 3]["ids"], batch[:1])


STAGES = [{"length": 64, "steps": 3}]


def data(prepared, **options):
    given = {"length": 256, "bases_per_step": 1024, "steps": 10, "stages": STAGES}
    return WindowData(prepared, **given | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": [{"length": 32, "steps": 3}]}, "no windows of 32 bases"),
        ({"stages": [{"length": 32, "steps": 3}], "length": 128}, r"length=\[32,128\]"),
        ({"stages": [{"length": 256, "steps": 3}], "length": 64}, "windows of 1 to data.length=64"),
        ({"steps": 3}, "data.stages take 3 steps and steps=3: leave some"),
        ({"stages": [{"length": 64, "steps": 0}]}, "at least one step"),
        ({"bases_per_step": 256 + 64}, "not a multiple of data.length=256"),
        ({"bases_per_step": 320, "length": 64, "stages": [{"length": 64, "steps": 1}]}, None),
    ],
)
def test_stages_that_cannot_be_had_are_refused(prepared, options, message):
    """With the command that makes the missing windows."""
    if message is None:
        assert len(data(prepared, **options).stages) == 2
        return
    with pytest.raises(InputError, match=message):
        data(prepared, **options)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder; make it with `fracdna prepare"):
        require_tables(tmp_path / "none", [64])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("most", [None, 256, 300, 512, 700])
def test_a_batch_has_the_same_bases_in_every_stage(prepared, devices, most):
    """At most as many as are allowed, and every step of every stage as many as the others."""
    made = data(prepared, bases_per_batch=most)
    size, accumulate = made.batches(devices)
    assert size * 256 * accumulate * devices == 1024
    assert size * 256 <= (most or 1024)


def test_uneven_shares_are_refused(prepared):
    """512 bases in three batches, three devices, or more devices than validation windows."""
    made = data(prepared, bases_per_step=1280, bases_per_batch=512)
    assert made.batches(5) == (1, 1)
    with pytest.raises(InputError, match="cannot be shared evenly by 1 devices in 3 batches"):
        made.batches(1)
    with pytest.raises(
        InputError, match="20 windows of 64 bases a step cannot be shared evenly by 3"
    ):
        made.batches(3)
    with pytest.raises(InputError, match="validation windows cannot be shared by 1000 devices"):
        made.batches(1000)


@pytest.mark.parametrize(
    ("windows", "devices", "expected"),
    [(1, 1, (1, 12)), (2, 1, (2, 6)), (5, 1, (4, 3)), (11, 1, (6, 2)), (99, 1, (12, 1)),
     (5, 2, (3, 2)), (1, 4, (1, 3))],
)  # fmt: skip
def test_the_largest_batch_divides_a_step_evenly(prepared, windows, devices, expected):
    made = data(prepared, bases_per_step=12 * 256)
    made.take_largest_batch(windows, devices)
    assert made.batches(devices) == expected
    made.bases_per_batch = made.bases_per_step
    made.repeat_batches(expected[1], devices)
    assert made.batches(devices) == expected


def test_a_batch_that_memory_cannot_hold_is_refused(prepared):
    """192 and 256 have few common parts: a batch would need more windows than fit."""
    with pytest.raises(InputError, match="no even batch of 12 windows a step is that small"):
        data(prepared, bases_per_step=12 * 256, stages=[]).take_largest_batch(0, 1)


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
