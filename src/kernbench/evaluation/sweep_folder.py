"""The folder of a sweep: its lock, its files, and the check that a new sweep overwrites no result by mistake."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock, Timeout

from kernbench.common.errors import InputError
from kernbench.evaluation.outputs import CONFIGURATION_FILE, PROVENANCE_FILE
from kernbench.evaluation.sweep_journal import (
    JOURNAL_FILE,
    Journal,
    JournalState,
    begin_journal,
    is_begun,
    read_state,
    resume_journal,
)
from kernbench.evaluation.sweep_spec import PlotKind
from kernbench.evaluation.sweep_table import TABLE_FILE

LOCK_FILE = "sweep.lock"
WALL_FILE = "wall_s.csv"
_LONGEST_HOLDER = 300
"""Most bytes of the lock file that an error quotes"""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock ``folder`` inside the block. Raises InputError, which names the lock's holder, if it is already locked.

    The operating system holds the lock on an open file, so the lock ends with its process. The file's content only
    names the process that holds the lock.
    """
    path = folder / LOCK_FILE
    try:
        # The first try fails if another sweep ends meanwhile.
        lock = FileLock(path, timeout=0.1, poll_interval=0.01, on_acquired=_write_holder).acquire()
    except Timeout as error:
        holder = _read_holder(path)
        raise InputError(
            f"{folder}: another sweep is writing into this folder{holder and f' ({holder})'}; wait until it has ended, "
            "or choose another --out"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be locked: {error.strerror}; choose another --out") from error
    with lock:
        try:
            yield
        finally:
            # Remove the file while it is locked: a process that opened it meanwhile then finds that the name is gone.
            path.unlink(missing_ok=True)


def _write_holder(file: int) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _read_holder(path: Path) -> str:
    """Return the content of a lock file; an empty string if its sweep has ended meanwhile."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST_HOLDER).strip()
    except FileNotFoundError:
        return ""


def picture_file(number: int, kind: PlotKind) -> str:
    """Return the name of a picture; ``number`` counts from 1."""
    return f"{number}_{kind.replace('-', '_')}.png"


def pictures_in(folder: Path) -> set[Path]:
    """Return the pictures of sweeps in ``folder``."""
    return {path for kind in get_args(PlotKind) for path in folder.glob(f"[0-9]*_{kind.replace('-', '_')}.png")}


def machine_file(number: int) -> str:
    """Return the name of the file of a machine of the axis ``machine``; ``number`` counts from 1."""
    return f"topology.{number}.resolved.yaml"


def machine_files_in(folder: Path) -> set[Path]:
    """Return the files of machines of the axis ``machine`` in ``folder``."""
    return set(folder.glob("topology.[0-9]*.resolved.yaml"))


def open_journal(
    folder: Path, identity: Mapping[str, Any], n_points: int, *, resume: bool = False, force: bool = False
) -> Journal:
    """Open the journal of the sweep ``identity`` in ``folder``; with ``resume``, continue an existing one.

    Raises InputError if results or finished points would be overwritten without ``force``, and if ``resume`` finds the
    journal of another sweep.
    """
    path = folder / JOURNAL_FILE
    if resume and is_begun(path):
        return resume_journal(path, identity, n_points)
    if not force:
        _check_nothing_lost(folder, identity)
    return begin_journal(path, identity, n_points, force=force)


def _check_nothing_lost(folder: Path, identity: Mapping[str, Any]) -> None:
    state = read_state(folder / JOURNAL_FILE)
    results = list(_results_in(folder))
    if not results and (state is None or not state.finished):
        return
    names = [JOURNAL_FILE, *results] if state is not None else results
    ways = []
    if state is not None and state.is_of(identity):
        ways.append("--resume writes its results again" if state.is_finished else "--resume continues it")
    ways += ["--force restarts and overwrites the results", "another --out keeps it unchanged"]
    raise InputError(f"{folder}: holds {_content(state)} ({', '.join(names)}); {', '.join(ways)}")


def _results_in(folder: Path) -> Iterator[str]:
    """Yield the names of files that a finished sweep would overwrite or remove."""
    files = (TABLE_FILE, WALL_FILE, PROVENANCE_FILE, CONFIGURATION_FILE)
    yield from (name for name in files if (folder / name).exists())
    yield from sorted(path.name for path in pictures_in(folder) | machine_files_in(folder))


def _content(state: JournalState | None) -> str:
    if state is None or not state.finished:
        return "results"
    if state.is_finished:
        return f"a finished sweep, {state.finished} of {state.points} points"
    return f"an unfinished sweep, {state}"
