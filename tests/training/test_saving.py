"""Which files of a run are whole, and what a place that refuses does to it."""

import errno
import os
import threading

import pytest
import torch

from fracdna.training.saving import AtomicCheckpoints, NotSaved, saving
from fracdna_prep.errors import InputError


def test_a_checkpoint_gets_its_name_when_it_is_on_the_disk(tmp_path, monkeypatch):
    """Written under another name, flushed, renamed, and the folder flushed too."""
    seen = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)

        def noted(*arguments, name=name, original=original):
            seen.append((name, sorted(p.name for p in tmp_path.iterdir() if p.name[0] != ".")))
            return original(*arguments)

        monkeypatch.setattr(os, name, noted)
    AtomicCheckpoints().save_checkpoint({"a": torch.ones(3)}, tmp_path / "last.ckpt")
    assert seen[0] == ("fsync", [])
    assert seen[-1] == ("fsync", ["last.ckpt"])
    assert torch.load(tmp_path / "last.ckpt")["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_place_that_refuses_ends_the_run_with_a_remedy(tmp_path, number):
    """Whoever met it first; the file is named."""
    with pytest.raises(NotSaved, match=r"events.*resume=true"), saving(tmp_path):
        raise OSError(number, os.strerror(number), b"events")
    cause = OSError(number, os.strerror(number))
    with pytest.raises(NotSaved, match="run"), saving(tmp_path / "run"):
        raise InputError("no space left") from cause


@pytest.mark.parametrize(
    "error", [InputError("cuda_graphs=true cannot be met"), OSError(errno.ENOENT, "gone"), KeyError]
)
def test_other_errors_are_no_matter_of_the_place(tmp_path, error):
    with pytest.raises(error if isinstance(error, type) else type(error)), saving(tmp_path):
        raise error


def test_only_refusals_of_threads_are_silent(tmp_path, monkeypatch):
    """TensorBoard's writer meets a full disk in a thread: its traceback would come first."""
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda thread: told.append(thread.exc_type))

    def fail(error):
        raise error

    with saving(tmp_path):
        for error in (OSError(errno.ENOSPC, "full"), OSError(errno.ENOENT, "gone"), ValueError()):
            thread = threading.Thread(target=fail, args=(error,))
            thread.start()
            thread.join()
    assert told == [FileNotFoundError, ValueError]
