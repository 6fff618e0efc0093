import errno
import multiprocessing
import os
import time

import pytest

from fracdna_prep.errors import InputError, Unfinished
from fracdna_prep.files import (
    atomic_file,
    check_writable,
    exclusive_lock,
    remove,
    remove_leftovers,
    sha256_file,
    writing_refusals,
)


def test_sha256_of_a_file(tmp_path):
    """The published digest of "abc"."""
    (tmp_path / "abc").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_file(tmp_path / "abc") == digest


def test_a_file_appears_whole_or_not_at_all(tmp_path, names_in):
    """A failure in the middle leaves the old file and no other."""
    path = tmp_path / "new" / "table.parquet"
    with atomic_file(path) as temporary:
        temporary.write_text("old")
        assert not path.exists()
        assert temporary.suffix == ".parquet"

    def fail():
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert names_in(path.parent) == ["table.parquet"]


def test_files_get_the_usual_permissions(tmp_path):
    """Others may read a shared store: temporary names do not tighten the permissions."""
    mask = os.umask(0o022)
    try:
        with atomic_file(tmp_path / "file") as temporary:
            temporary.touch()
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_what_killed_writers_left_is_removed(tmp_path, names_in):
    """Temporary names of the files asked for only, folders too."""
    kept = ["windows-1.parquet", ".windows-1.parquet", ".deadbeef.other", ".notahex!.windows-1"]
    for name in (*kept, ".deadbeef.windows-1.parquet", ".01234567.windows-22.parquet"):
        (tmp_path / name).touch()
    (tmp_path / ".89abcdef.windows-3.parquet" / "part").mkdir(parents=True)
    remove_leftovers(tmp_path, "windows-*.parquet")
    assert names_in(tmp_path) == sorted(kept)


def _hold(path, log, name):
    with exclusive_lock(path):
        with log.open("a") as file:
            file.write(f"{name} in\n")
        time.sleep(0.05)
        with log.open("a") as file:
            file.write(f"{name} out\n")


def test_only_one_process_holds_a_lock(tmp_path):
    """Holders never interleave, and the lock file is gone at the end."""
    context = multiprocessing.get_context("fork")
    arguments = [(tmp_path / "lock", tmp_path / "log", str(i)) for i in range(6)]
    processes = [context.Process(target=_hold, args=a) for a in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    assert len(lines) == 12
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert (entered.split()[0], left.split()[1]) == (left.split()[0], "out")
    assert not (tmp_path / "lock").exists()


def test_missing_permission_is_called_by_its_name(open_folder, without_privileges):
    """Case 3: the message says permission, not "no such file"."""
    locked = open_folder / "locked"
    locked.mkdir(mode=0o555)

    def write():
        with atomic_file(locked / "deep" / "file"):
            pass

    with pytest.raises(InputError, match="no permission to write"):
        without_privileges(write)
    with pytest.raises(InputError, match="no permission to write"):
        without_privileges(lambda: check_writable(locked / "deep" / "file"))


def test_a_place_that_cannot_be_is_refused(tmp_path):
    """A file where a folder must be, a name too long; but not a source that vanished."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "x", tmp_path / "file" / "x" / "y"):
        with pytest.raises(InputError, match="file is a file: name another folder"):
            check_writable(place)
        with pytest.raises(InputError, match="cannot be written"), atomic_file(place):
            pass
    for place in (tmp_path / ("n" * 300), tmp_path / ("n" * 300) / "x"):
        with pytest.raises(InputError, match="cannot be written"):
            check_writable(place)
    with (
        pytest.raises(InputError, match="cannot be written"),
        atomic_file(tmp_path / "folder") as temporary,
    ):
        temporary.touch()
    with pytest.raises(FileNotFoundError), writing_refusals(tmp_path / "folder" / "out"):
        (tmp_path / "elsewhere").read_bytes()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_called_by_its_name(number, tmp_path):
    """A quota is one too; the message says what to do."""
    words = rf"no space left while writing {tmp_path} \({os.strerror(number)}\): make room and give"
    with pytest.raises(Unfinished, match=words), writing_refusals(tmp_path):
        raise OSError(number, os.strerror(number))


def test_a_disk_that_fails_is_called_by_its_name(tmp_path):
    """One elsewhere, and other errors of the system, pass unchanged."""
    with (
        pytest.raises(
            Unfinished, match=rf"the disk failed while writing {tmp_path} \(Input/output"
        ),
        writing_refusals(tmp_path),
    ):
        raise OSError(errno.EIO, "Input/output error")
    for error in (OSError(errno.EIO, "failed", "/elsewhere/file"), OSError(errno.EBUSY, "busy")):
        with pytest.raises(OSError, match=error.strerror), writing_refusals(tmp_path / "out"):
            raise error


def test_whatever_stands_at_a_place_is_removed(tmp_path, names_in):
    """Files, folders and links, but not what a link leads to; nothing is fine too."""
    place, kept = tmp_path / "place", tmp_path / "kept"
    (kept / "deep").mkdir(parents=True)
    for make in (
        lambda: None, place.touch, lambda: (place / "deep").mkdir(parents=True),
        lambda: place.symlink_to(kept), lambda: place.symlink_to(tmp_path / "nowhere"),
    ):  # fmt: skip
        make()
        remove(place)
        assert names_in(tmp_path) == ["kept"]
    assert names_in(kept) == ["deep"]
