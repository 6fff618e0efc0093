"""What a model carries, in the form that generation in transformers passes around."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import Cache

from fracdna.evaluation.stream_state import with_tensors
from fracdna.model.carried import state_tensors
from fracdna_prep.errors import InputError


class FracdnaCache(Cache):
    """The state of every layer after what was read; the same object goes on from call to call.

    Args:
        state: of the model, such as initial_state gives.

    Attributes:
        state: as the model's step returns it; every tensor in it has the batch first.
        seen: columns read so far, padding included: what an attention mask counts.
    """

    def __init__(self, state: Any) -> None:
        super().__init__(layers=[])
        self.state, self.seen = state, 0

    def __len__(self) -> int:
        """Number of layers."""
        return len(self.state)

    def advance(self, state: Any, columns: int) -> None:
        """Take the state after so many more columns."""
        self.state, self.seen = state, self.seen + columns

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns read so far, the same in all layers."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows in another order, as beam search asks for; a row may come several times."""
        self._change(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """These rows alone."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times."""
        self._change(lambda x: x.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: a memory that fades keeps no way back to what it was.

        Raises:
            InputError: positions are to be removed.
        """
        if tokens_to_remove:
            raise InputError(
                f"{tokens_to_remove} positions cannot be taken out of a state again: read the "
                "sequence anew, or keep a copy of the cache (copy.deepcopy) from before"
            )

    def reset(self) -> None:
        """Zeros everywhere, which is no empty state of every layer: refused.

        Raises:
            InputError: always.
        """
        raise InputError("a cache is not reset: leave cache= out, and the model makes a new one")

    @property
    def batch_size(self) -> int:
        """Sequences that are carried."""
        return state_tensors(self.state)[0].shape[0]

    @property
    def is_croppable(self) -> bool:
        """Whether positions can be taken out again."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """Says that columns are counted, so that generation goes on after those that were read."""
        return [False]

    def _change(self, function: Callable[[Tensor], Tensor]) -> None:
        """The function of every tensor of the state."""
        self.state = with_tensors(self.state, map(function, state_tensors(self.state)))
