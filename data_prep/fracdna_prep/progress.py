"""The one look of all progress bars: they count bases."""

import sys

from tqdm import tqdm

_ON_TERMINAL_SECONDS = 0.1
# A log keeps every state of the bar as a line of its own.
_IN_LOG_SECONDS = 15.0


def progress_bar(total: int, name: str, shown: bool = True) -> tqdm:
    """A progress bar on stderr over bases; as a context manager it closes itself.

    Args:
        total: bases.
        name: what is being done.
        shown: false makes a bar that shows nothing.
    """
    seconds = _ON_TERMINAL_SECONDS if sys.stderr.isatty() else _IN_LOG_SECONDS
    return tqdm(
        total=total,
        desc=name,
        unit="base",
        unit_scale=True,
        dynamic_ncols=True,
        mininterval=seconds,
        # tqdm's own limit of 10 seconds would overrule the longer pause.
        maxinterval=max(10.0, seconds),
        disable=not shown,
    )
