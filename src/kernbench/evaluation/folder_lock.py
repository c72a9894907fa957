"""Exclusive lock of a sweep folder.

The operating system holds the lock on an open file, so the lock ends with its process. The file's content only
names the process that holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernbench.common.errors import InputError

LOCK_FILE = "sweep.lock"
LONGEST_OWNER = 300
MOST_TRIES = 100
"""Maximum number of tries. A try fails if another sweep ends meanwhile, or if the file system changes inode numbers."""
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock ``folder`` inside the block. Raises InputError, which names the lock's holder, if it is already locked."""
    path = folder / LOCK_FILE
    file = _try_lock(path)
    try:
        yield
    finally:
        # Remove the file while it is locked: a process that opened it meanwhile then finds that the name is gone.
        path.unlink(missing_ok=True)
        os.close(file)


def _try_lock(path: Path) -> int:
    for _ in range(MOST_TRIES):
        file = _lock_or_close(path)
        if _is_at(path, file):
            return file
        os.close(file)
    raise InputError(
        f"{path}: cannot be locked: in each of {MOST_TRIES} tries, another file had the name; choose another --out"
    )


def _lock_or_close(path: Path) -> int:
    """Open and lock ``path``. Child processes do not inherit the file, because Python closes its files at exec."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise _cannot_lock(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        owner = os.pread(file, LONGEST_OWNER, 0).decode(errors="replace").strip()
        os.close(file)
        if error.errno not in _HELD:
            raise _cannot_lock(path, error) from error
        who = f" ({owner})" if owner else ""
        raise InputError(
            f"{path.parent}: another sweep is writing into this folder{who}; wait until it has ended, or choose "
            "another --out"
        ) from error
    return file


def _is_at(path: Path, file: int) -> bool:
    """Return True if ``path`` still names ``file``. The last sweep may have removed the file since it was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _cannot_lock(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be locked: {error.strerror}; choose another --out")
