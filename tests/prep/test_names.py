import pytest

from fracdna_prep.errors import InputError
from fracdna_prep.names import match_names, read_name_pairs, resolve_names


def test_the_report_shows_both_sides_and_a_proposal():
    """Case 11: matched, missing on either side, first names, and what chr_prefix would do."""
    report = match_names(["1", "X", "MT", "1"], ["chr1", "chr2", "chrX", "chrM"])
    assert report.matched == ()
    assert report.missing == ("1", "X", "MT")
    assert report.unused == ("chr1", "chr2", "chrX", "chrM")
    assert report.proposal == {"1": "chr1", "X": "chrX", "MT": "chrM"}
    text = report.describe()
    assert "in the intervals only: 1, X, MT" in text
    assert "rename=chr_prefix would read 1 -> chr1" in text


def test_nothing_is_proposed_that_does_not_explain_everything():
    """Neither for an unknown contig nor where two names would become one."""
    assert match_names(["1", "chrZZ"], ["chr1"]).proposal is None
    assert match_names(["1", "chr1"], ["chr1"]).proposal is None
    assert match_names(["chr1"], ["chr1"]).proposal is None
    assert "rename" not in match_names(["chr1"], ["chr1"]).describe()


def test_long_lists_of_names_are_cut():
    """A genome of many scaffolds does not fill the screen."""
    text = match_names(["x"], [f"s{i}" for i in range(500)]).describe()
    assert "s6, s7 and 492 more" in text
    assert "s100" not in text


@pytest.mark.parametrize(
    ("names", "genome", "expected"),
    [
        (["1", "MT"], ["chr1", "chrM"], {"1": "chr1", "MT": "chrM"}),
        (["chr1", "chrM"], ["1", "MT"], {"chr1": "1", "chrM": "MT"}),
        (["M"], ["MT"], {"M": "MT"}),
        (["1", "chr2"], ["chr1", "chr2"], {"1": "chr1", "chr2": "chr2"}),
        (["1", "zz"], ["chr1"], {"1": "chr1"}),
    ],
)
def test_chr_prefix_adds_or_takes_the_prefix(names, genome, expected):
    """Case 11: in both directions, M and MT included; the unknown stays unknown."""
    assert resolve_names(names, genome, "chr_prefix") == expected


def test_names_are_applied_only_when_asked_for():
    """Case 11: the default changes no name."""
    assert resolve_names(["1", "chr2"], ["chr1", "chr2"]) == {"chr2": "chr2"}


def test_a_file_of_pairs_renames(tmp_path):
    """The name in the BED or VCF first; names that are not listed stay."""
    path = tmp_path / "names.tsv"
    path.write_text("#bed\tfasta\nchr20\tNC_000020.10\n\nX NC_000023.10\n")
    assert read_name_pairs(path) == {"chr20": "NC_000020.10", "X": "NC_000023.10"}
    genome = ["NC_000020.10", "NC_000023.10", "Y"]
    found = resolve_names(["X", "Y", "chr20"], genome, str(path))
    assert found == {"X": "NC_000023.10", "Y": "Y", "chr20": "NC_000020.10"}


@pytest.mark.parametrize(
    ("text", "words"), [("a\n", ":1: 1 word"), ("a b\na c\n", ":2: 'a' is given a second name")]
)
def test_a_file_that_is_no_list_of_pairs_is_refused(text, words, tmp_path):
    """With its line."""
    path = tmp_path / "names.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_name_pairs(path)


def test_two_names_never_become_one(tmp_path):
    """One to one, else refused: rows of two contigs must not be read from one."""
    with pytest.raises(InputError, match="'1' and 'chr1' both as 'chr1'"):
        resolve_names(["1", "chr1"], ["chr1"], "chr_prefix")
    path = tmp_path / "names.tsv"
    path.write_text("a c\nb c\n")
    with pytest.raises(InputError, match="'a' and 'b' both as 'c'"):
        resolve_names(["a", "b"], ["c"], str(path))
