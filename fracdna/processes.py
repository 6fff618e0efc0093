"""Work spread over processes that end with the first one."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def process_pool(
    count: int, begin: Callable[..., None], *given: Any
) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Fresh processes that share the threads of this one; nobody waits for work under way at exit.

    Args:
        count: of processes.
        begin: called in each, with what is given, before its first work.
        given: arguments that can be pickled.
    """
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    threads = max(1, torch.get_num_threads() // count)
    pool = concurrent.futures.ProcessPoolExecutor(count, context, _begin, (threads, begin, *given))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


def _begin(threads: int, begin: Callable[..., None], *given: Any) -> None:
    """What every process does first."""
    # Ctrl-C reaches every process of a terminal; the first one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    torch.set_num_threads(threads)
    begin(*given)


def _end_with_the_first() -> None:
    """A first process that was killed cannot end the others: they would go on without it."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)
