"""Writing files so that a reader never meets half of one."""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from fracdna_prep.errors import InputError, Unfinished

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# handles of the locks that this process holds
_HELD: set[int] = set()
_NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)


def sha256_file(path: Path | str) -> str:
    """The SHA-256 of a file's bytes, as hexadecimal text."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing_refusals(path: Path) -> Iterator[None]:
    """Turns what the place of `path` can do to its writer into an InputError.

    That is no permission, and a place where no file or folder can be; no space left or a disk that
    fails is Unfinished. Errors about other places, such as a source that vanished meanwhile, pass
    unchanged.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or path
        if error.errno in _NOT_WRITABLE:
            raise InputError(
                f"no permission to write {place} ({error.strerror}): name a folder that you may "
                "write to"
            ) from error
        if error.errno in _NO_ROOM:
            raise Unfinished(
                f"no space left while writing {place} ({os.strerror(error.errno)}): make room and "
                "give the same command again"
            ) from error
        if error.errno == errno.EIO and _is_about(error, Path(path).absolute()):
            raise Unfinished(
                f"the disk failed while writing {place} ({os.strerror(error.errno)}): see to it "
                "and give the same command again"
            ) from error
        if error.errno in _NO_SUCH_PLACE and _is_about(error, Path(path).absolute()):
            raise InputError(
                f"{place} cannot be written ({error.strerror}): name another folder"
            ) from error
        raise


def check_place(path: Path | str) -> Path:
    """Refuses a path that leads through a file, or is none at all.

    Returns:
        the first folder or file above it, or at it, that exists.

    Raises:
        InputError: a file where a folder must be, or a name that the system does not allow.
    """
    path = Path(path).absolute()
    existing = path
    with writing_refusals(path):
        # exists() would hide a name that is too long, depending on the version of Python.
        while not _exists(existing):
            existing = existing.parent
    if existing != path and not existing.is_dir():
        raise InputError(f"{path} cannot be made: {existing} is a file: name another folder")
    return existing


def check_writable(path: Path | str) -> None:
    """Refuses a file or folder to be written where the first existing folder above it forbids it.

    Raises:
        InputError: no permission, or as check_place.
    """
    existing = check_place(path)
    needed = os.W_OK | os.X_OK if existing.is_dir() else os.W_OK
    if not os.access(existing, needed):
        raise InputError(
            f"no permission to write {path}: {existing} is read-only for this user; name a folder "
            "that you may write to"
        )


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_about(error: OSError, path: Path) -> bool:
    """Whether an error names `path`, a folder above it, something beside it, or nothing."""
    if error.filename is None:
        return True
    place = Path(os.fsdecode(error.filename)).absolute()
    return path.is_relative_to(place) or place.is_relative_to(path.parent)


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it when the block ends well, removed otherwise.

    Nothing is created under the temporary name, so the file gets the usual permissions. The name
    keeps the suffixes of `path`, because some writers choose a format by them.

    Raises:
        InputError: the folder cannot be written or is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    with writing_refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def remove(place: Path) -> None:
    """Removes a file, a link or a folder with all that it holds; nothing is fine too."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Removes what writers of files like `pattern` left when they were killed.

    Whoever calls this holds a lock that keeps other writers of such files away.
    """
    for leftover in folder.glob(f".{'[0-9a-f]' * 8}.{pattern}"):
        remove(leftover)


@contextlib.contextmanager
def exclusive_lock(path: Path | str, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock file `path`; a second holder, in any process, waits. The file is removed.

    Args:
        path: of the lock file.
        wait: false refuses where another process holds the lock.

    Raises:
        InputError: the folder cannot be written, or the lock is held and `wait` is false.
    """
    path = Path(path)
    with writing_refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked_handle(path, wait)
    _HELD.add(handle)
    try:
        yield
    finally:
        if handle in _HELD:  # not in a process that was forked meanwhile
            _HELD.remove(handle)
            with contextlib.suppress(OSError):  # a folder that has become read-only
                path.unlink()
            os.close(handle)


def _leave_locks_to_the_parent() -> None:
    """A forked process shares its parent's locks, and would keep them when the parent is killed."""
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


def _locked_handle(path: Path, wait: bool) -> int:
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"another process works on {path.parent}: wait until it ends"
            ) from None
        # The last holder may have removed the file while this one waited for it: then the lock
        # held here is on a file that nobody else can find.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        os.close(handle)
