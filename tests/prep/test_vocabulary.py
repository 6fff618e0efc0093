import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import AMBIGUOUS_LETTERS, DNA, Vocabulary


def test_ids_are_those_of_hyenadna():
    """Weights and id arrays can be exchanged: 12 ids in HyenaDNA's order, 16 rows."""
    assert (DNA.cls, DNA.sep, DNA.bos, DNA.mask, DNA.pad, DNA.unk) == (0, 1, 2, 3, 4, 6)
    assert DNA.bases == (7, 8, 9, 10)
    assert (DNA.n, DNA.size, DNA.rows) == (11, 12, 16)
    assert DNA.symbols[5] == "[RESERVED]"


def test_lower_case_reads_as_upper_case():
    """Case 7: `atg` and `ATG` give the same ids 7 10 9."""
    assert DNA.encode("atg").tolist() == DNA.encode("ATG").tolist() == [7, 10, 9]


def test_iupac_letters_become_n():
    """Every ambiguity code is N in either case, and nothing is ever UNK."""
    both = AMBIGUOUS_LETTERS + AMBIGUOUS_LETTERS.lower()
    assert set(DNA.encode(both).tolist()) == {DNA.n}
    assert DNA.unk not in DNA.encode(both + "acgtACGT")


@pytest.mark.parametrize("letter", ["E", "*", "-", " ", "\n", "é", "中", "\0", ">", "1"])
def test_other_characters_are_refused_with_position(letter):
    """A character that is no nucleotide names itself and its position, whatever its width."""
    with pytest.raises(InputError, match="position 3") as refusal:
        DNA.encode(f"ACG{letter}T")
    assert repr(letter) in str(refusal.value)


def test_encoded_ids_are_writable_uint8():
    """Callers may change what they got."""
    ids = DNA.encode("ACGT")
    ids[0] = DNA.mask
    assert ids.dtype == np.uint8
    assert DNA.encode("").shape == (0,)


def test_batches_are_padded_on_the_right():
    """Case 22: `ACG` and `ACGTACG` in one batch: PAD (4) on the right, mask, no CLS."""
    ids, mask = DNA.encode_batch(["ACG", "ACGTACG"])
    assert ids.tolist() == [[7, 8, 9, 4, 4, 4, 4], [7, 8, 9, 10, 7, 8, 9]]
    assert mask.tolist() == [[True] * 3 + [False] * 4, [True] * 7]
    assert ids.dtype == np.uint8


def test_cls_stands_first_when_asked_for():
    """Case 22: CLS only on request, and it is no padding."""
    ids, mask = DNA.encode_batch(["A", ""], cls=True)
    assert ids.tolist() == [[0, 7], [0, 4]]
    assert mask.tolist() == [[True, True], [True, False]]


def test_batches_of_nothing_have_no_columns():
    """No texts and empty texts are no error."""
    assert DNA.encode_batch([])[0].shape == (0, 0)
    assert DNA.encode_batch([""])[1].shape == (1, 0)


def test_a_bad_letter_in_a_batch_names_its_sequence():
    """The message tells which sequence of a batch is wrong."""
    with pytest.raises(InputError, match=r"sequence 1: position 0 .*'Q'"):
        DNA.encode_batch(["ACG", "QCG"])


def test_complement_pairs_bases_and_keeps_the_rest():
    """A-T, C-G; N and every special id map to themselves."""
    pairs = dict(zip("ACGTN", "TGCAN", strict=True))
    for symbol, identifier in zip(DNA.symbols, range(DNA.size), strict=True):
        expected = pairs.get(symbol, symbol)
        assert DNA.symbols[DNA.complement[identifier]] == expected
    assert DNA.complement.dtype == np.uint8


@given(st.text(alphabet="ACGTN", max_size=200))
def test_decode_inverts_encode_and_reverse_complement_inverts_itself(text):
    """Round trips lose nothing."""
    ids = DNA.encode(text)
    assert DNA.decode(ids) == text
    twice = DNA.reverse_complement(DNA.reverse_complement(ids))
    assert twice.tolist() == ids.tolist()


def test_reverse_complement_of_a_known_word():
    """GATTACAN reads NTGTAATC on the other strand; batches are reversed row by row."""
    assert DNA.decode(DNA.reverse_complement(DNA.encode("GATTACAN"))) == "NTGTAATC"
    batch = np.stack([DNA.encode("AAC"), DNA.encode("GGT")])
    assert [DNA.decode(row) for row in DNA.reverse_complement(batch)] == ["GTT", "ACC"]


def test_decode_shows_special_ids_and_refuses_foreign_ones():
    """Special ids appear by name; rows 12 to 15 of a table are no symbols."""
    assert DNA.decode([2, 7, 4]) == "[BOS]A[PAD]"
    with pytest.raises(InputError, match=r"0\.\.11"):
        DNA.decode([12])


def test_a_vocabulary_extends_its_own_beginning_only():
    """An older vocabulary is extended when every id keeps its symbol."""
    assert DNA.extends(DNA.symbols)
    assert DNA.extends(DNA.symbols[:9])
    assert Vocabulary((*DNA.symbols, "M")).extends(DNA.symbols)
    assert not DNA.extends((*DNA.symbols, "M"))
    swapped = (*DNA.symbols[:7], "C", "A", *DNA.symbols[9:])
    assert not DNA.extends(swapped)


def test_the_vocabulary_cannot_be_changed():
    """Frozen, and so are its tables."""
    with pytest.raises(AttributeError):
        DNA.symbols = ()
    with pytest.raises(ValueError, match="read-only"):
        DNA.complement[7] = 0
