import dataclasses

import pytest

from fracdna_prep.blocks import LARGEST_BLOCK, BlockRequest, plan_blocks, split_blocks
from fracdna_prep.errors import InputError

ECOLI, LAMBDA = {"chr": 4_641_652}, {"chr": 48_502}


def request(longest=1_024, validation_fraction=0.1, test_fraction=0.1, seed=2222, **sizes):
    return BlockRequest(longest, validation_fraction, test_fraction, seed, **sizes)


@pytest.mark.parametrize(
    ("bases", "longest", "block_size"),
    [
        (4_641_652, 1_024, 116_041),
        (48_502, 1_024, 4_096),
        (4_641_652, 65_536, 262_144),
        (3_000_000_000, 1_024, LARGEST_BLOCK),
        (3_000_000_000, 1_048_576, 4 * 1_048_576),
    ],
)
def test_blocks_are_chosen_for_the_genome(bases, longest, block_size):
    """A fortieth, but four windows at least and a million bases at most; a window as guard."""
    plan = plan_blocks({"chr": bases}, request(longest))
    assert (plan.block_size, plan.guard) == (block_size, longest)


@pytest.mark.parametrize(
    ("contigs", "within"), [(ECOLI, 0.02), (LAMBDA, 0.1), ({f"c{i}": 5_000 for i in range(40)}, 0)]
)
def test_chosen_blocks_give_the_shares_asked_for(contigs, within):
    """From the phage, with 12 blocks, to many short contigs; all bases are accounted for."""
    plan = plan_blocks(contigs, request())
    for split, share in plan.requested.items():
        assert plan.bases_by_split[split] / plan.bases == pytest.approx(share, abs=within + 1e-9)
    assert plan.left_out == plan.bases - sum(r.end - r.start for r in plan.regions)


def test_short_contigs_are_one_block_without_a_guard():
    """Nothing beside a contig belongs to another split, so none of its bases is left out."""
    plan = plan_blocks({f"c{i}": 5_000 for i in range(40)}, request())
    assert plan.left_out == 0
    assert [(r.start, r.end) for r in plan.regions] == [(0, 5_000)] * 40


@pytest.mark.parametrize(("length", "ends"), [(149, [149]), (150, [100, 150]), (30, [30])])
def test_a_short_rest_is_no_block_of_its_own(length, ends):
    """Under half a block it belongs to the block before it: 12 bases are no test set."""
    found = set()
    for seed in range(60):
        regions = split_blocks(
            {"a": length, "b": 1_000}, block_size=100, guard=0, validation_fraction=0.4,
            test_fraction=0.4, seed=seed,
        )  # fmt: skip
        found |= {region.end for region in regions if region.contig == "a"}
    assert sorted(found) == ends


def test_given_sizes_are_used():
    """Only what is left open is chosen."""
    plan = plan_blocks(ECOLI, request(block_size=50_000, guard=10))
    assert (plan.block_size, plan.guard) == (50_000, 10)
    assert plan_blocks(ECOLI, request(guard=100_000)).block_size == 400_000


@pytest.mark.parametrize(
    ("contigs", "asked"),
    [
        (LAMBDA, request(block_size=1_048_576, guard=65_536)),
        (LAMBDA, request(block_size=1_000)),
        (LAMBDA, request(longest=16_384)),
        ({"a": 40, "b": 20}, request(longest=8)),
    ],
)
def test_a_refusal_names_values_that_work(contigs, asked):
    """Whoever follows the message gets a split."""
    with pytest.raises(InputError, match="would work") as refusal:
        plan_blocks(contigs, asked)
    words = str(refusal.value).replace(",", "").split()
    pairs = dict(word.split("=") for word in words if "=" in word and word.split("=")[1].isdigit())
    named = {"longest": int(pairs.get("length", asked.longest))}
    named |= {name: int(pairs[name]) for name in ("block_size", "guard")}
    plan = plan_blocks(contigs, dataclasses.replace(asked, **named))
    assert min(plan.bases_by_split.values()) > 0


def test_a_genome_too_small_for_any_block_is_told_so():
    """Two bases cannot make three splits."""
    with pytest.raises(InputError, match="too small for these fractions: choose split=none"):
        plan_blocks({"a": 2}, request(longest=1))


def smallest_split(seed):
    try:
        plan = plan_blocks({"a": 300}, request(8, 0.34, 0.34, seed, block_size=100, guard=99))
    except InputError as error:
        return str(error)
    return min(plan.bases_by_split.values())


def test_no_split_is_silently_empty():
    """Training between two held-out blocks may vanish behind two guards: then it is refused."""
    outcomes = [smallest_split(seed) for seed in range(12)]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert all("guards of 99 leave no base for train" in refusal for refusal in refusals)
    assert 0 < len(refusals) < 12
    assert all(outcome > 0 for outcome in outcomes if outcome not in refusals)
