"""Interpolated Markov chains of DNA: the tables of counts beside which every network is shown.

With n the counts of both strands of the training bases and c the strength of the prior,

    P_k(x | context) = (n(context, x) + c P_{k-1}(x | context without its first base))
                       / (n(context) + c),          P_{-1} = 1/4,

so a context that was hardly seen falls back on the shorter one. All orders come out together,
since each is made from the one below. A (k+1)-mer is an integer: base 4, the newest base last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

if TYPE_CHECKING:
    from tqdm import tqdm

HIGHEST_ORDER = 12
STRENGTH = 16.0  # of the shorter context's prediction, in counts
TABLED_ORDER = 10  # up to here nats are looked up; above, a table of float64 would outgrow memory
BLOCK = 2**18  # positions handled at once: the working arrays stay within a few tens of MB

Codes = NDArray[np.uint8]  # 0 to 3 for A, C, G, T and 4 for anything else
FORWARD, REVERSE = np.full((2, 256), 4, np.uint8)  # code of an id, and of its complement
FORWARD[list(DNA.bases)] = np.arange(4)
REVERSE[DNA.complement[list(DNA.bases)]] = np.arange(4)


class MarkovCounts:
    """How often each (k+1)-mer stands on either strand, for all orders k up to the highest.

    While counting, a position enters one table only: that of the longest context it has. The
    shorter orders are sums over the longer ones, made once when a model asks for them. Order 12
    takes 268 MB, the orders below it 112 MB.

    Args:
        max_order: the longest context in bases, 0 to 12.

    Raises:
        InputError: an order outside that range.
    """

    def __init__(self, max_order: int = HIGHEST_ORDER) -> None:
        if not 0 <= max_order <= HIGHEST_ORDER:
            raise InputError(
                f"max_order={max_order}: a Markov chain here has order 0 to {HIGHEST_ORDER}"
            )
        self.max_order = max_order
        # Both strands of a large genome hold more than 2^32 bases, but no 12-mer that often.
        self._tables = [
            np.zeros(4 ** (order + 1), np.int64 if order <= TABLED_ORDER else np.uint32)
            for order in range(max_order + 1)
        ]
        self._closed = False

    def update(self, ids: NDArray[np.uint8], *, progress: tqdm | None = None) -> None:
        """Count one contiguous stretch on both strands.

        Args:
            ids: (length,) vocabulary ids; anything that is not A, C, G or T breaks the context.
            progress: a bar to move on by the bases read.

        Raises:
            InputError: ids of another shape, or a model was already made from these counts.
        """
        if self._closed:
            raise InputError("a model already reads these counts: update before making it")
        for strand, code_of_id in ((ids, FORWARD), (ids[::-1], REVERSE)):
            for _, words, depth in _blocks(strand, self.max_order, code_of_id):
                for order, table in enumerate(self._tables):
                    # A one of the table's own type: any other makes add.at twenty times slower.
                    np.add.at(table, words[depth == order] & _mask(order), table.dtype.type(1))
        if progress is not None:
            progress.update(len(ids))

    def close(self) -> list[NDArray[np.integer]]:
        """End the counting and give n(context, base): one flat table of 4^(k+1) per order k."""
        if not self._closed:
            for order in range(self.max_order, 0, -1):
                lower = self._tables[order - 1]
                lower += self._tables[order].reshape(4, -1).sum(0, dtype=lower.dtype)
            self._closed = True
        return self._tables


class MarkovModel:
    """Interpolated Markov chains of every order, read off the same counts.

    Args:
        counts: the counted training bases; they are shared, not copied, and take no more updates.
        strength: c, how many observations the shorter context is worth.

    Raises:
        InputError: a strength that is not positive.

    Source: MacKay and Peto 1995, A hierarchical Dirichlet language model, with one fixed strength.
    """

    def __init__(self, counts: MarkovCounts, strength: float = STRENGTH) -> None:
        if not strength > 0:
            raise InputError(f"strength={strength}: the prior needs a positive weight, e.g. 16")
        self.max_order = counts.max_order
        self.strength = strength
        self._counts = counts.close()
        self._nats: list[NDArray[np.float64]] = []
        lower = np.full((1, 4), 0.25)
        for table in self._counts[: TABLED_ORDER + 1]:
            # The first axis is the context's first base, which the shorter context does not have.
            count = table.reshape(-1, *lower.shape)
            total = count.sum(-1, keepdims=True)
            lower = ((count + strength * lower) / (total + strength)).reshape(-1, 4)
            self._nats.append(-np.log(lower).ravel())

    def nll_nats(self, ids: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Negative log-likelihood of each base under each order.

        Contexts never reach before the array or across an id that is not a base, where the order
        falls to the number of bases there are; so windows joined by BOS are scored as if alone.

        Args:
            ids: (length,) vocabulary ids of one window.

        Returns:
            (max_order + 1, length) float64 nats; NaN where the target is not A, C, G or T.

        Raises:
            InputError: ids of another shape.
        """
        return np.concatenate([np.empty((self.max_order + 1, 0)), *self.pieces(ids)], axis=1)

    def pieces(self, ids: NDArray[np.uint8]) -> Iterator[NDArray[np.float64]]:
        """`nll_nats` piece by piece, so that memory does not grow with the window.

        Args:
            ids: (length,) vocabulary ids of one window.

        Yields:
            (max_order + 1, bases) of the next bases.

        Raises:
            InputError: ids of another shape.
        """
        for place, words, depth in _blocks(ids, self.max_order):
            nats = np.empty((self.max_order + 1, place.stop - place.start))
            for row, of_order in zip(nats, self._orders(words, depth), strict=True):
                row[:] = of_order
            yield nats

    def _orders(
        self, words: NDArray[np.int64], depth: NDArray[np.int8]
    ) -> Iterator[NDArray[np.float64]]:
        """Nats of each position under order 0, 1, ..., max_order in turn."""
        lower = np.full(len(words), np.nan)
        for order in range(self.max_order + 1):
            nats = self._one_order(order, words & _mask(order), lower)
            shallow = np.flatnonzero(depth < order)
            nats[shallow] = lower[shallow]
            yield nats
            lower = nats

    def _one_order(
        self, order: int, words: NDArray[np.int64], lower: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Nats of full contexts under one order, given those under the order below."""
        if order < len(self._nats):
            return self._nats[order].take(words)
        # One gather per context: its four counts lie side by side, also in the cache.
        counts = self._counts[order].reshape(-1, 4).take(words >> 2, axis=0)
        count = counts[np.arange(len(words)), words & 3]
        total = counts[:, 0] + counts[:, 1] + counts[:, 2] + counts[:, 3]
        prior = self.strength * np.exp(-lower)
        return np.log((total + self.strength) / (count + prior))


def _mask(order: int) -> int:
    """What keeps the newest order + 1 bases of a word."""
    return 4 ** (order + 1) - 1


def _blocks(
    ids: NDArray[np.uint8], max_order: int, code_of_id: Codes = FORWARD
) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[np.int8]]]:
    """Cut a stretch in blocks that still see the bases in front of them.

    Yields:
        place: where the block lies in `ids`.
        words: its positions as integers of max_order + 1 bases, the newest lowest; bases that
            `depth` does not vouch for are arbitrary.
        depth: how many bases stand before each position without a break, at most max_order;
            -1 where the position itself is not a base.
    """
    if ids.ndim != 1:
        raise InputError(f"ids of shape {ids.shape}: pass one window, of shape (length,)")
    for start in range(0, len(ids), BLOCK):
        lead = min(start, max_order)
        stop = min(start + BLOCK, len(ids))
        piece = code_of_id[ids[start - lead : stop]]
        yield slice(start, stop), _words(piece, max_order)[lead:], _depth(piece, max_order)[lead:]


def _words(codes: Codes, max_order: int) -> NDArray[np.int64]:
    """Each position and the max_order codes before it, as one base-4 integer."""
    digits = (codes & 3).astype(np.int64)
    words = digits.copy()
    for back in range(1, max_order + 1):
        words[back:] += digits[:-back] << (2 * back)
    return words


def _depth(codes: Codes, max_order: int) -> NDArray[np.int8]:
    """Length of the unbroken run of bases before each position, as in `_blocks`."""
    positions = np.arange(len(codes))
    last_break = np.maximum.accumulate(np.where(codes < 4, -1, positions))
    return np.minimum(positions - last_break - 1, max_order).astype(np.int8)
