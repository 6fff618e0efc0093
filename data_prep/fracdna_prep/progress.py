"""The one look of all progress bars: they count bases, or bytes of files."""

import sys

from tqdm import tqdm

_ON_TERMINAL_SECONDS = 0.1
# A log keeps every state of the bar as a line of its own.
_IN_LOG_SECONDS = 15.0


def progress_bar(total: int, name: str, shown: bool = True, unit: str = "base") -> tqdm:
    """A progress bar on stderr, with rate and time left; as a context manager it closes itself.

    Args:
        total: bases, or whatever the unit is.
        name: what is being done.
        shown: false makes a bar that shows nothing.
        unit: what is counted.
    """
    seconds = _ON_TERMINAL_SECONDS if sys.stderr.isatty() else _IN_LOG_SECONDS
    return tqdm(
        total=total,
        desc=name,
        unit=unit,
        unit_scale=True,
        dynamic_ncols=True,
        mininterval=seconds,
        # tqdm's own limit of 10 seconds would overrule the longer pause.
        maxinterval=max(10.0, seconds),
        disable=not shown,
    )
