"""The alphabet: HyenaDNA's character ids, so that weights and id arrays can be exchanged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fracdna_prep.errors import InputError

# Ambiguity codes of IUPAC, U of RNA and the X of old masked files: real letters, but not one base.
AMBIGUOUS_LETTERS = "NRYKMSWBDHVUX"
_REFUSED = 0xFF


@dataclass(frozen=True)
class Vocabulary:
    """An immutable alphabet; ids are positions in `symbols`, and all else follows from them.

    Source: HyenaDNA's CharacterTokenizer with the characters A, C, G, T, N (ids 7 to 11).
    """

    symbols: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of symbols."""
        return len(self.symbols)

    @property
    def rows(self) -> int:
        """Rows of an embedding table: the size rounded up to a multiple of 8."""
        return -(-self.size // 8) * 8

    @property
    def cls(self) -> int:
        """Id of the classification token."""
        return self.symbols.index("[CLS]")

    @property
    def sep(self) -> int:
        """Id of the separator token."""
        return self.symbols.index("[SEP]")

    @property
    def bos(self) -> int:
        """Id that opens every window."""
        return self.symbols.index("[BOS]")

    @property
    def mask(self) -> int:
        """Id that hides a base from a masked model."""
        return self.symbols.index("[MASK]")

    @property
    def pad(self) -> int:
        """Id of padding."""
        return self.symbols.index("[PAD]")

    @property
    def unk(self) -> int:
        """Id of an unknown token; no reader of this package produces it."""
        return self.symbols.index("[UNK]")

    @property
    def n(self) -> int:
        """Id of N, any base."""
        return self.symbols.index("N")

    @cached_property
    def bases(self) -> tuple[int, int, int, int]:
        """Ids of A, C, G and T."""
        a, c, g, t = (self.symbols.index(letter) for letter in "ACGT")
        return a, c, g, t

    @cached_property
    def complement(self) -> np.ndarray:
        """(size,) uint8: the id on the other strand; N and every special id map to themselves."""
        table = np.arange(self.size, dtype=np.uint8)
        table[list(self.bases)] = self.bases[::-1]
        table.flags.writeable = False
        return table

    @cached_property
    def _id_of_letter(self) -> bytes:
        table = bytearray([_REFUSED]) * 256
        for letter in AMBIGUOUS_LETTERS:
            table[ord(letter)] = table[ord(letter.lower())] = self.n
        for letter, identifier in zip("ACGT", self.bases, strict=True):
            table[ord(letter)] = table[ord(letter.lower())] = identifier
        return bytes(table)

    def encode(self, text: str) -> np.ndarray:
        """Ids of a sequence: lower case as upper case, IUPAC letters as N.

        Returns:
            (len(text),) uint8, writable.

        Raises:
            InputError: a character that is no nucleotide letter; names its position and itself.
        """
        # One byte a character, so that positions in the bytes are positions in the text; what
        # Latin-1 lacks becomes "?", which is refused like any other character.
        ids = bytearray(text, "latin-1", "replace").translate(self._id_of_letter)
        position = ids.find(_REFUSED)
        if position >= 0:
            raise InputError(
                f"position {position} (counted from 0) holds {text[position]!r}, which is not a "
                "nucleotide letter: use A, C, G, T, N or another IUPAC letter"
            )
        return np.frombuffer(ids, dtype=np.uint8)

    def encode_batch(
        self, texts: Sequence[str], cls: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of several sequences, padded on the right.

        Args:
            texts: B sequences.
            cls: put the CLS id before each of them.

        Returns:
            ids (B, L) uint8 and mask (B, L) bool, true where there is no padding.

        Raises:
            InputError: as encode, naming the sequence.
        """
        rows = [self._encode_row(index, text, cls) for index, text in enumerate(texts)]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        ids = np.full(mask.shape, self.pad, dtype=np.uint8)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return ids, mask

    def _encode_row(self, index: int, text: str, cls: bool) -> np.ndarray:
        try:
            ids = self.encode(text)
        except InputError as error:
            raise InputError(f"sequence {index}: {error}") from None
        return np.concatenate([np.array([self.cls] * cls, dtype=np.uint8), ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The symbols of ids, joined; special ids appear as their bracketed names.

        Raises:
            InputError: an id outside the vocabulary.
        """
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
        if array.size and not 0 <= array.min() <= array.max() < self.size:
            raise InputError(f"ids must lie in 0..{self.size - 1}, got {sorted(set(array))}")
        return "".join(map(self.symbols.__getitem__, array.tolist()))

    def extends(self, other_symbols: Sequence[str]) -> bool:
        """Whether every id of an older vocabulary keeps its symbol here."""
        return self.symbols[: len(other_symbols)] == tuple(other_symbols)

    def reverse_complement(self, ids: np.ndarray) -> np.ndarray:
        """The ids of the other strand, read from its own start; works on the last axis."""
        return np.ascontiguousarray(self.complement[ids[..., ::-1]])


DNA = Vocabulary(
    ("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]", "A", "C", "G", "T", "N")
)
