"""Any causal network made strand-equivariant: it reads both strands, each in its own direction."""

import torch
from torch import Tensor, nn

from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA


class StrandEquivariant(nn.Module):
    """States of every base on both strands: F(x) = [f(x), flip(f(R x))].

    R is the reverse complement and f the hidden states of a causal network, so the first half of a
    vector knows what stands before its base, the second what stands behind it. Whatever the
    weights, F(R x) is F(x) with its halves exchanged and its positions reversed (docs/strands.md).
    Every call is two passes. All weights are those of the model, which is what is saved and loaded;
    dropout, of a network in training mode, is drawn for each pass.

    Args:
        model: such as load_model returns.

    Raises:
        InputError: a model of another vocabulary, whose symbols have no complement.

    Source: the two channel halves of Caduceus-PS, Schiff et al. 2024, arXiv 2403.03234.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        rows = model.backbone.embedding.num_embeddings
        if rows != DNA.rows:
            raise InputError(
                f"a model with vocabulary_rows={rows} does not read DNA, whose vocabulary has "
                f"{DNA.rows}: its symbols have no complement"
            )
        self.model = model
        table = torch.arange(rows)
        table[: DNA.size] = torch.from_numpy(DNA.complement.astype("int64"))
        self.register_buffer("_complement", table, persistent=False)

    def forward(
        self, ids: Tensor, *, lengths: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> Tensor:
        """Equivariant states of whole sequences.

        Args:
            ids: (batch, length), any integer dtype. A BOS at the start of a sequence stays there on
                the other strand.
            lengths: (batch,) valid positions of right-padded rows, BOS included; None: all.
            cu_seqlens: (sequences + 1,) bounds of packed sequences, needs batch 1.

        Returns:
            (batch, length, 2 d_model) in the order of ids, after the final norm; BOS has the same
            vector in both halves, and padding none that means anything.

        Raises:
            InputError: both lengths and cu_seqlens.
        """
        mirror = _mirror(ids, *_bounds(ids, lengths, cu_seqlens))
        own, other = self._strands(ids, mirror, cu_seqlens)
        return torch.cat([own, other.gather(1, mirror[..., None].expand_as(other))], dim=-1)

    def pooled(self, ids: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """The mean of every row over its bases and both strands, which knows no strand.

        Args:
            ids: as in forward, at least one base in every row.
            lengths: likewise.

        Returns:
            (batch, d_model); of R x the same bits as of x. N counts, BOS and padding do not.
        """
        first, stop = _bounds(ids, lengths, None)
        place = torch.arange(ids.shape[1], device=ids.device)
        counted = ((place >= first) & (place < stop))[..., None]
        # each in its order of reading, so that strands differ in the order of the last sum alone
        own, other = (
            torch.where(counted, states, 0.0).sum(1)
            for states in self._strands(ids, _mirror(ids, first, stop), None)
        )
        return (own + other) / (2 * (stop - first))

    def _strands(
        self, ids: Tensor, mirror: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """States of both strands, each (batch, length, d_model) in its order of reading."""
        # one pass each: of equal shape, so that a strand has the same bits as either half
        other = self._complement[ids.long()].gather(1, mirror)
        own, flipped = (self.model.backbone(x, cu_seqlens=cu_seqlens) for x in (ids, other))
        return own, flipped


def _bounds(
    ids: Tensor, lengths: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Where the bases of the sequence around each position begin and end, (batch, 1 or length)."""
    if lengths is not None and cu_seqlens is not None:
        raise InputError("lengths= is for padded rows, cu_seqlens= for packed ones: give one")
    batch, length = ids.shape
    if cu_seqlens is None:
        first = torch.zeros(batch, 1, dtype=torch.long, device=ids.device)
        stop = torch.full_like(first, length) if lengths is None else lengths[:, None].long()
    else:
        # what stands behind the last bound counts as one more sequence
        bounds = torch.cat([cu_seqlens.long(), cu_seqlens.new_full((1,), length).long()])
        place = torch.arange(length, device=ids.device)
        number = torch.searchsorted(bounds[:-1], place, right=True)
        first, stop = bounds[number - 1][None], bounds[number][None]
    return first + (ids.gather(1, first) == DNA.bos), stop


def _mirror(ids: Tensor, first: Tensor, stop: Tensor) -> Tensor:
    """(batch, length) the place of each base on the other strand; BOS and padding keep theirs."""
    place = torch.arange(ids.shape[1], device=ids.device)
    inside = (place >= first) & (place < stop)
    return torch.where(inside, first + stop - 1 - place, place)
