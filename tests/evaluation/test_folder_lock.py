"""One sweep at a time in a folder, whatever became of the one before."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.common.errors import InputError
from kernbench.evaluation.sweep_folder import LOCK_FILE, folder_lock

HOLDER = """
import os, sys, time
from pathlib import Path
from kernbench.evaluation.sweep_folder import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


def test_a_second_one_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(InputError) as caught, folder_lock(tmp_path):
        pass
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}: another sweep is writing into this folder (process {os.getpid()} on ")
    assert "choose another --out" in said


def test_nothing_is_left(tmp_path: Path) -> None:
    for _ in range(2):
        with folder_lock(tmp_path):
            assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), folder_lock(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "has it\n"
    with pytest.raises(InputError, match=f"process {holder.pid} on"), folder_lock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert (tmp_path / LOCK_FILE).exists()
    with folder_lock(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text().startswith(f"process {os.getpid()} on ")


def test_a_process_that_was_forked_does_not_keep_it(tmp_path: Path) -> None:
    forks = HOLDER.replace("    print", "    if not os.fork(): sys.stdin.read(); os._exit(0)\n    print")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", forks, str(tmp_path)], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        holder.kill()
        holder.wait()
        with folder_lock(tmp_path):
            pass


def test_a_process_that_is_started_does_not_keep_it(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with folder_lock(tmp_path):
            pass
    finally:
        other.communicate(b"\n")


def test_a_file_that_was_removed_while_it_was_being_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        taken(file, operation)
        if not removed:
            # The one before ends now: it removes its file, which is locked here a moment too late.
            removed.append((tmp_path / LOCK_FILE).unlink())

    removed: list[None] = []
    taken = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    with folder_lock(tmp_path), pytest.raises(InputError, match="another sweep"), folder_lock(tmp_path):
        pass
    assert removed == [None]


def test_where_nothing_can_be_locked(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(InputError, match=r"sweep\.lock: cannot be locked: Is a directory"), folder_lock(tmp_path):
        pass
