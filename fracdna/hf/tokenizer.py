"""A base is a token: HyenaDNA's ids, in the form of transformers."""

from typing import Any, ClassVar

from transformers import PreTrainedTokenizer

from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

_ROLES = {
    "bos_token": DNA.bos, "pad_token": DNA.pad, "unk_token": DNA.unk, "cls_token": DNA.cls,
    "sep_token": DNA.sep, "mask_token": DNA.mask,
}  # fmt: skip


class FracdnaTokenizer(PreTrainedTokenizer):
    """Letters to ids as fracdna_prep.vocabulary.DNA says, with [BOS] in front and nothing behind.

    Lower case is upper case, every other letter of IUPAC is N, and what is no letter of a
    nucleotide is refused and not made [UNK]. Ids come from the vocabulary alone: a folder keeps
    none that could differ. Padding is on the right; the models take it on either side.

    Args:
        **kwargs: of PreTrainedTokenizer.

    Raises:
        InputError: a saved tokenizer with other ids, or with tokens that DNA has not.
    """

    vocab_files_names: ClassVar[dict[str, str]] = {}
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, **kwargs: Any) -> None:
        self._ids = {symbol: index for index, symbol in enumerate(DNA.symbols)}
        roles = {name: DNA.symbols[index] for name, index in _ROLES.items()}
        given = {"padding_side": "right", "extra_special_tokens": ["[RESERVED]"]} | roles | kwargs
        super().__init__(**given | {"special_tokens_pattern": "bos"})
        swapped = any(getattr(self, f"{name}_id") != index for name, index in _ROLES.items())
        if swapped or self.get_vocab() != self._ids:
            raise InputError(
                f"a tokenizer with the tokens {self.get_vocab()} is not that of DNA {self._ids}: "
                "ids would change their meaning; save FracdnaTokenizer() in its place"
            )

    @property
    def vocab_size(self) -> int:
        """Number of symbols; the model's embedding has a few unused rows more."""
        return DNA.size

    def get_vocab(self) -> dict[str, int]:
        """Symbols and their ids."""
        return self._ids | self.get_added_vocab()

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Nothing is written: the vocabulary is that of the package."""
        return ()

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """[BOS] and the sequence.

        Raises:
            InputError: a pair of sequences.
        """
        if token_ids_1 is not None:
            raise InputError(
                "a pair of sequences has no form for these models: give them one by one"
            )
        return super().build_inputs_with_special_tokens(token_ids_0)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Symbols without blanks between them."""
        return "".join(tokens)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        """The letters of a sequence, upper case, N where one is ambiguous."""
        return list(DNA.decode(DNA.encode(text)))

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids.get(token, DNA.unk)

    def _convert_id_to_token(self, index: int) -> str:
        return DNA.symbols[index] if 0 <= index < DNA.size else DNA.decode([index])
