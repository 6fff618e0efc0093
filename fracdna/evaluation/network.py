"""Nats of every base under a network: short windows in batches, long ones in segments."""

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from fracdna.data.objectives import next_base
from fracdna.evaluation.likelihood import base_nll
from fracdna.model.carried import state_grows
from fracdna.model.heads import LanguageModel

# results that may wait for their copy while the device goes on
_ON_THE_WAY = 2


def base_nats(
    model: LanguageModel,
    windows: Iterable[np.ndarray],
    *,
    batch_bases: int,
    precision: torch.dtype = torch.float32,
) -> Iterator[np.ndarray]:
    """What a network makes of windows of one length, its state empty at the start of each.

    Args:
        model: in evaluation mode, on its device.
        windows: (windows, length) uint8 ids, as many at a time as the source likes.
        batch_bases: most bases of one forward pass. A longer window is read in segments of so many
            bases that carry the state, so memory does not grow with the window; where a state
            grows with what was read (attention), segments would save nothing, and the window is
            read at once.
        precision: compute type; the softmax stays in float32.

    Yields:
        (2, bases) float32, base after base in the order of the windows: over all rows of the
        head, and renormalised over A, C, G and T; 0 where nothing is predicted.
    """
    return _on_the_host(_passes(model, windows, batch_bases, precision))


@torch.inference_mode()
def _passes(
    model: LanguageModel, windows: Iterable[np.ndarray], batch_bases: int, precision: torch.dtype
) -> Iterator[Tensor]:
    """(2, bases) of every forward pass, still on the device."""
    device = model.backbone.embedding.weight.device
    low = precision != torch.float32
    in_segments: bool | None = None
    for ids in _batches(windows, batch_bases):
        inputs, targets = next_base(torch.from_numpy(ids).to(device))
        if in_segments is None:
            in_segments = ids.shape[1] > batch_bases and not state_grows(model)
        state = model.initial_state(len(ids)) if in_segments else None
        size = batch_bases if in_segments else ids.shape[1]
        for segment, wanted in zip(inputs.split(size, 1), targets.split(size, 1), strict=True):
            with torch.autocast(device.type, dtype=precision, enabled=low):
                if state is None:
                    logits = model(segment)
                else:
                    logits, state = model.step(segment, state)
            yield base_nll(logits, wanted).flatten(1)


def _batches(windows: Iterable[np.ndarray], batch_bases: int) -> Iterator[np.ndarray]:
    """Windows in batches of at most so many bases, at least one window, the last batch smaller."""
    waiting: list[np.ndarray] = []
    for several in windows:
        size = max(batch_bases // several.shape[1], 1)
        waiting += list(several)
        while len(waiting) >= size:
            yield np.stack(waiting[:size])
            waiting = waiting[size:]
    if waiting:
        yield np.stack(waiting)


def _on_the_host(results: Iterable[Tensor]) -> Iterator[np.ndarray]:
    """Results as arrays; on a GPU the copy of one runs while the next ones are computed."""
    waiting: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
    for result in results:
        copied = result.to("cpu", non_blocking=True)
        done = torch.cuda.current_stream(result.device).record_event() if result.is_cuda else None
        waiting.append((copied, done))
        if len(waiting) > _ON_THE_WAY:
            yield _arrived(*waiting.popleft())
    while waiting:
        yield _arrived(*waiting.popleft())


def _arrived(result: Tensor, done: torch.cuda.Event | None) -> np.ndarray:
    """A result whose copy has ended."""
    if done is not None:
        done.synchronize()
    return result.numpy()
