import dataclasses

import pytest

from fracdna_prep.errors import InputError
from fracdna_prep.options import PrepareOptions

NUMBER = "give a whole number of at least"
SHARE = "give a number between 0 and 1"


@pytest.fixture
def options(tmp_path):
    return PrepareOptions(fasta="genome.fa", output=tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("length", [4.7, True, "abc", 0, -1, [1, [2]], [4.5], [None], ["8"]], NUMBER),
        ("length", [None, []], "give one or more lengths"),
        ("seed", [-1, None, 1.5, False], NUMBER),
        ("block_size", [0, -1, True, 2.5, "big"], NUMBER),
        ("guard", [-1, True, 2.5, "big"], NUMBER),
        ("max_n_fraction", [None, float("nan"), -0.1, 1.1, "half", True, []], SHARE),
        ("validation_fraction", [None, float("inf"), 2], SHARE),
        ("test_fraction", [None, float("nan"), -1], SHARE),
        ("fasta", [3, "", " ", [["a"]], [None], ["a", ""], "a\0b"], "give one path"),
        ("fasta", [None, []], "name one or more files"),
        ("output", [None, 5, "", ["x"]], "give one path"),
        ("intervals", [4, "", ["a"]], "give one path"),
        ("store", [4, "", ["a"]], "give one path"),
        ("rename", [None, 4, ""], "give none, chr_prefix or the path"),
        ("validation_chromosomes", [[None], [["a"]], "", [True], [2.5]], "is no contig name"),
        ("test_chromosomes", [[None], 2.5, [""]], "is no contig name"),
        ("split", [None, ["bed"], 3], "choose one of auto"),
        ("policy", [None, True], "choose one of shift"),
        ("progress", [None, "yes", 1], "choose true or false"),
        ("allow_split_overlap", [None, "yes"], "choose true or false"),
        ("verify", [None, "yes", 1], "choose true or false"),
    ],
)
def test_values_of_a_wrong_kind_are_refused(name, values, words, options):
    """The message names the option and says what it takes."""
    for value in values:
        with pytest.raises(InputError, match=words) as refusal:
            dataclasses.replace(options, **{name: value}).check()
        assert name in str(refusal.value), value


def test_values_are_shown_as_they_were_written(options):
    """Text in quotes, nothing as null."""
    for length, shown in (("512", "length='512'"), (4.7, "length=4.7"), (None, "length=null")):
        with pytest.raises(InputError, match=shown):
            dataclasses.replace(options, length=length).check()


def test_usual_values_pass(options):
    """One length or several, open sizes, numbers or names of chromosomes."""
    for changed in (
        {"length": (1, 2)}, {"block_size": 1, "guard": 0}, {"max_n_fraction": 1},
        {"fasta": ["a.fa", "b.fa"]}, {"rename": "chr_prefix"}, {"test_chromosomes": [1, "X"]},
        {"validation_chromosomes": None},
    ):  # fmt: skip
        dataclasses.replace(options, **changed).check()
