"""Log-likelihoods of windows on both strands, what their beginnings share read once.

The rows of a site are its distinct windows: they agree up to the variant, so that part is read in
one row, and every window goes on from a copy of that state. On the other strand the same holds for
what lies behind the variant, unless an indel has moved the end of the window.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fracdna.data.objectives import IGNORED, next_base
from fracdna.devices import choose_precision
from fracdna.embedding.states import evaluating
from fracdna.evaluation.likelihood import token_nll
from fracdna.evaluation.stream_state import with_tensors
from fracdna.model.carried import state_grows, state_tensors
from fracdna.model.heads import LanguageModel
from fracdna.outcomes import NotFinite
from fracdna.scoring.options import DEFAULTS, ScoringOptions
from fracdna.scoring.windows import Site, rows_of, site_windows
from fracdna_prep.genome import GenomeStore
from fracdna_prep.vocabulary import DNA


class Values(NamedTuple):
    """What is computed of one allele; nats and counts begin with the first base that differs.

    Attributes:
        logp_ref_forward: log-likelihood of the REF window on the reference strand, nats.
        logp_alt_forward: of the ALT window.
        bases_ref_forward: bases counted in it; N is not.
        bases_alt_forward: in the ALT window.
        logp_ref_reverse: and the same four on the other strand.
        logp_alt_reverse: likewise.
        bases_ref_reverse: likewise.
        bases_alt_reverse: likewise.
        embedding_l2: distance of the mean hidden states of both windows.
        embedding_cosine: 1 - cosine of them.
        n_fraction: share of N in the REF window.
        differs: 1 where the windows differ, 0 where they end before the alleles do.
    """

    logp_ref_forward: float
    logp_alt_forward: float
    bases_ref_forward: float
    bases_alt_forward: float
    logp_ref_reverse: float
    logp_alt_reverse: float
    bases_ref_reverse: float
    bases_alt_reverse: float
    embedding_l2: float
    embedding_cosine: float
    n_fraction: float
    differs: float


WIDTH = len(Values._fields)
_PLACE = {name: place for place, name in enumerate(Values._fields)}
_STRANDS = slice(0, 4), slice(4, 8)
_DISTANCES = slice(8, 10)


class Pair(NamedTuple):
    """One ALT window beside its REF window.

    Attributes:
        result: place of the allele among the results.
        ref: row of the REF window in its task.
        alt: row of the ALT window.
        first: index of the first base that differs, in reading direction.
    """

    result: int
    ref: int
    alt: int
    first: int


@dataclass(frozen=True)
class Task:
    """One strand of a site.

    Attributes:
        windows: (rows, length) uint8 ids, in an order that follows from the windows alone, so that
            exchanged alleles are computed bit by bit alike.
        pairs: see Pair.
        once: bases that are read in one row for all windows.
        reverse: whether this is the other strand.
    """

    windows: np.ndarray
    pairs: list[Pair]
    once: int
    reverse: bool

    @property
    def rest(self) -> int:
        """Positions that every row reads by itself: the base or BOS before them comes first."""
        return 1 + self.windows.shape[1] - self.once


class SiteScorer:
    """A model that scores sites.

    Args:
        model: such as load_model returns, on the device to be used.
        store: the genome; bases are read when they are due.
        options: limits of one pass, and the most N.
        advance: told the positions of every pass, as Site.positions counts them.

    Attributes:
        split: whether what windows share is read once; a cache that grows would need masks as
            large as what is saved, so such models read windows whole and at once.
    """

    def __init__(
        self,
        model: LanguageModel,
        store: GenomeStore,
        options: ScoringOptions = DEFAULTS,
        advance: Callable[[int], Any] | None = None,
    ) -> None:
        options.check()
        self.split = not state_grows(model)
        self._model, self._store, self._options = model, store, options
        self.advance = advance or _ignore
        self._device = model.backbone.embedding.weight.device

    @torch.inference_mode()
    def values(self, sites: Sequence[Site]) -> np.ndarray:
        """(alleles, len(Values)) float64 of some sites, in the order of windows.rows_of.

        NaN stands for what is not computed: windows with too many N, or without a difference.

        Raises:
            NotFinite: a likelihood or a distance is NaN or infinite; names the first affected row.
        """
        results = np.full((sum(len(site.rows) for site in sites), WIDTH), np.nan)
        tasks, first = [], 0
        for site in sites:
            found = self._tasks(site, results[first : first + len(site.rows)], first)
            tasks += found
            first += len(site.rows)
        precision = choose_precision(self._options.precision)
        low = precision != torch.float32
        with (
            evaluating(self._model),
            torch.autocast(self._device.type, dtype=precision, enabled=low),
        ):
            for batch in _batches(tasks, self._options.batch_bases):
                self._compute(batch, results)
        self._check(sites, results)
        return results

    def _tasks(self, site: Site, results: np.ndarray, first: int) -> list[Task]:
        """Both strands of a site, without alleles whose windows do not differ."""
        ref, alts = site_windows(self._store, site)
        results[:, _PLACE["n_fraction"]] = n_fraction = float((ref == DNA.n).mean())
        differs = (alts != ref).any(axis=1)
        results[:, _PLACE["differs"]] = differs
        places = np.flatnonzero(differs)
        if n_fraction > self._options.max_n_fraction or not places.size:
            self.advance(site.positions(split=self.split))
            return []
        windows = np.unique(np.concatenate([ref[None], alts[places]]), axis=0)
        rows = [int((windows == window).all(axis=1).argmax()) for window in (ref, *alts[places])]
        self.advance(
            site.positions(split=self.split)
            - site.positions(split=self.split, windows=len(windows))
        )
        tasks = []
        for reverse in (False, True):
            read = DNA.reverse_complement(windows) if reverse else windows
            pairs = [
                Pair(first + int(place), rows[0], row, int((read[row] != read[rows[0]]).argmax()))
                for place, row in zip(places, rows[1:], strict=True)
            ]
            once = site.read_once(reverse=reverse) if self.split else 0
            tasks.append(Task(read, pairs, once, reverse))
        return tasks

    def _compute(self, batch: Sequence[Task], results: np.ndarray) -> None:
        """Fill in the results of some tasks that read equally many bases once."""
        once, sizes = batch[0].once, [len(task.windows) for task in batch]
        offsets = np.cumsum([0, *sizes[:-1]])
        tokens = _tokens(batch)
        state = self._model.initial_state(len(tokens))
        if once:
            shared = self._read_once(tokens[offsets, :once])
            owner = torch.repeat_interleave(torch.tensor(sizes)).to(self._device)
            state = with_tensors(state, (x.index_select(0, owner) for x in state_tensors(shared)))
        pairs = [
            pair._replace(ref=pair.ref + offset, alt=pair.alt + offset)
            for task, offset in zip(batch, offsets.tolist(), strict=True)
            for pair in task.pairs
        ]
        sums = _Sums(pairs, once, distances=not batch[0].reverse, device=self._device)
        for start, end, hidden, _ in self._pieces(tokens[:, once:], state):
            read = torch.from_numpy(tokens[:, once + start : once + end + 1])
            sums.add(hidden, self._model.logits(hidden), read, start)
        self.advance(sum(task.rest * len(task.windows) for task in batch))
        where = [pair.result for pair in pairs]
        results[where, _STRANDS[batch[0].reverse]] = sums.likelihoods()
        if not batch[0].reverse:
            results[where, _DISTANCES] = sums.distances()

    def _read_once(self, tokens: np.ndarray) -> Any:
        """The state after what is shared, one row for each site."""
        state = self._model.initial_state(len(tokens))
        for *_, after in self._pieces(tokens, state):
            state = after
        self.advance(tokens.size)
        return state

    def _pieces(self, tokens: np.ndarray, state: Any) -> Iterator[tuple[int, int, Tensor, Any]]:
        """Hidden states of a continuation in passes, with the state after each.

        Yields:
            start and end of the piece, (rows, end - start, d_model), and the state.
        """
        rows, length = tokens.shape
        piece = max(1, self._options.batch_bases // rows) if self.split else length
        for start in range(0, length, piece):
            ids = torch.from_numpy(tokens[:, start : start + piece]).to(self._device)
            hidden, state = self._model.backbone.step(ids, state)
            yield start, start + ids.shape[1], hidden, state

    def _check(self, sites: Sequence[Site], results: np.ndarray) -> None:
        """Refuses results that are no numbers where there should be some."""
        computed = results[:, _PLACE["differs"]] == 1
        computed &= results[:, _PLACE["n_fraction"]] <= self._options.max_n_fraction
        affected = rows_of(sites)[computed & ~np.isfinite(results).all(axis=1)]
        if affected.size:
            row = int(affected.min())
            raise NotFinite(f"row {row}: its likelihood or distance is NaN or infinite", row)


class _Sums:
    """Nats, counted bases and hidden states of pairs of windows, also piece by piece.

    Args:
        pairs: rows as they stand in the batch.
        once: bases ahead of the first piece.
        distances: whether hidden states are summed.
        device: of the sums.
    """

    def __init__(
        self, pairs: Sequence[Pair], once: int, *, distances: bool, device: torch.device
    ) -> None:
        table = torch.tensor([(pair.ref, pair.alt, pair.first - once) for pair in pairs])
        self._ref, self._alt, self._first = table.to(device).unbind(1)
        self._wanted = distances
        self._sums = torch.zeros(len(pairs), 4, dtype=torch.float64, device=device)
        self._hidden: list[Tensor | float] = [0.0, 0.0]
        self._count: Tensor | float = 0.0

    def add(self, hidden: Tensor, logits: Tensor, read: Tensor, start: int) -> None:
        """Take in one piece.

        Args:
            hidden: (rows, length, d_model), states of the piece.
            logits: (rows, length, vocabulary rows), what is predicted there.
            read: (rows, length + 1), the ids of the piece and the next one, which the last piece
                lacks.
            start: position of the piece; 0 is the last position ahead of all differences.
        """
        length = hidden.shape[1]
        read = torch.nn.functional.pad(
            read.to(hidden.device), (0, length + 1 - read.shape[1]), value=DNA.pad
        )
        targets = next_base(read[:, 1:])[1]
        # in float64, because what differs between two windows is small beside their sums
        nats = token_nll(logits.double(), targets)
        counted = (targets != IGNORED).double()
        positions = start + torch.arange(length, device=hidden.device)
        after = positions >= self._first[:, None]
        sums = [
            torch.where(after, part[rows], 0.0).sum(1)
            for rows in (self._ref, self._alt)
            for part in (-nats, counted)
        ]
        self._sums += torch.stack(sums, dim=1)
        if self._wanted:
            inside = read[:, :-1] != DNA.pad
            self._add_states(hidden, inside[self._ref] & (positions > self._first[:, None]))

    def likelihoods(self) -> np.ndarray:
        """(pairs, 4) float64: logp of REF and ALT, then bases counted in each."""
        return self._sums[:, [0, 2, 1, 3]].cpu().numpy()

    def distances(self) -> np.ndarray:
        """(pairs, 2) float64: L2 and 1 - cosine of the mean states."""
        ref, alt = (total / self._count for total in self._hidden)
        apart = torch.linalg.vector_norm(alt - ref, dim=1)
        return torch.stack([apart, 1 - cosine_similarity(ref, alt, dim=1)], dim=1).cpu().numpy()

    def _add_states(self, hidden: Tensor, counted: Tensor) -> None:
        """Sums of the states of the first base that differs and of all behind it in the window."""
        for place, rows in enumerate((self._ref, self._alt)):
            # a pad may hold anything, NaN too, so it is replaced rather than multiplied by zero
            kept = torch.where(counted[..., None], hidden[rows], 0.0)
            self._hidden[place] = self._hidden[place] + kept.sum(1, dtype=torch.float64)
        self._count = self._count + counted.sum(1, dtype=torch.float64)[:, None]


def _batches(tasks: Sequence[Task], batch_bases: int) -> Iterator[Sequence[Task]]:
    """Tasks of one strand that read equally many bases once, those with like rests together."""
    order = sorted(tasks, key=lambda task: (task.reverse, -task.once, -task.rest))
    first = 0
    while first < len(order):
        lead, rows, end = order[first], 0, first
        while end < len(order) and _alike(lead, order[end]):
            rows += len(order[end].windows)
            count = end + 1 - first
            if count > 1 and max(rows * lead.rest, count * lead.once) > batch_bases:
                break
            end += 1
        yield order[first:end]
        first = end


def _alike(lead: Task, task: Task) -> bool:
    """Whether two tasks can be in one batch."""
    return (lead.reverse, lead.once) == (task.reverse, task.once)


def _tokens(batch: Sequence[Task]) -> np.ndarray:
    """(rows, 1 + longest) uint8: BOS, the ids, then PAD on the right."""
    longest = max(task.windows.shape[1] for task in batch)
    tokens = np.full((sum(len(task.windows) for task in batch), 1 + longest), DNA.pad, np.uint8)
    tokens[:, 0] = DNA.bos
    first = 0
    for task in batch:
        rows, length = task.windows.shape
        tokens[first : first + rows, 1 : 1 + length] = task.windows
        first += rows
    return tokens


def _ignore(positions: int) -> None:
    """Progress that nobody watches."""
