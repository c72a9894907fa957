"""What is read as an input of the user's: regular files of bounded size; and where files are written."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kernbench.common.errors import InputError, UnreadableFileError
from kernbench.common.files import MOST_INPUT_BYTES, check_input, read_input, writable, write_bytes


def why_not(path: Path | str, most: int | None = MOST_INPUT_BYTES) -> str:
    """Why it is refused, by both ways to ask."""
    with pytest.raises(UnreadableFileError) as checked:
        check_input(path, most)
    with pytest.raises(UnreadableFileError, match=f"^{path}: ") as read:
        read_input(path, most)
    assert str(checked.value) == str(read.value)
    return read.value.reason


def test_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text\r\n")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "link to it").symlink_to("link")
    assert read_input(tmp_path / "link to it") == b"text\r\n"


def test_what_has_no_end_or_no_content_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    allowed = "; only regular files of at most 16 MB are read"
    assert why_not("/dev/zero") == f"cannot be read: Is a device{allowed}"
    assert why_not(tmp_path) == f"cannot be read: Is a directory{allowed}"
    for name in ("fifo", "link"):
        pipe = f"cannot be read: Is a pipe{allowed}: write its output to a file, and pass that file"
        assert why_not(tmp_path / name) == pipe
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert why_not(tmp_path / "socket") == f"cannot be read: Is a socket{allowed}"


def test_a_process_substitution_is_refused() -> None:
    """The shell gives ``<(command)`` as the name of the end of a pipe."""
    end, other = os.pipe()
    try:
        assert "Is a pipe" in why_not(f"/dev/fd/{end}")
    finally:
        os.close(end)
        os.close(other)


def test_a_file_may_have_16_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, MOST_INPUT_BYTES)
    assert len(read_input(path)) == MOST_INPUT_BYTES == 16_000_000
    os.truncate(path, MOST_INPUT_BYTES + 1)
    assert why_not(path) == "cannot be read: it has 16,000,001 bytes; only regular files of at most 16 MB are read"
    check_input(path, most=None)
    os.truncate(path, 1 << 42)  # of which nothing is on the disk
    assert "it has 4,398,046,511,104 bytes" in why_not(path)


def test_a_file_that_has_more_in_it_than_it_says() -> None:
    status = "/proc/self/status"
    assert Path(status).stat().st_size == 0
    with pytest.raises(UnreadableFileError, match="it has more than 10 bytes"):
        read_input(status, most=10)


@pytest.mark.parametrize("name", ["none", "none/x", "a\0b"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableFileError, match=r"no such file \(looked from "):
        read_input(tmp_path / name)


def test_what_the_system_refuses(tmp_path: Path) -> None:
    assert why_not(tmp_path / ("x" * 300)) == "cannot be read: File name too long"


def test_what_is_no_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written takes the place of what was there: nobody wants that of a device."""
    os.mkfifo(tmp_path / "fifo")
    for name, why in ((tmp_path / "fifo", "is no regular file"), (tmp_path, "is a folder"), ("", "needs a name")):
        with pytest.raises(InputError, match=why):
            writable(name)
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path / "kept")  # whoever runs this may do all
    (tmp_path / "kept").touch()
    assert why_not(tmp_path / "kept") == "cannot be read: Permission denied"
    with pytest.raises(InputError, match="exists, and may not be written"):
        writable(tmp_path / "kept")
    with pytest.raises(InputError, match="is no regular file"):  # behind the link there may be one
        writable("/dev/stdout")
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (("loop", "Too many levels of symbolic links"), ("x" * 300, "File name too long")):
        with pytest.raises(InputError, match=f"cannot be written there: {why}"):
            writable(tmp_path / name)


def test_a_link_stays_one_when_it_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/file")
    write_bytes(tmp_path / "link", b"text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_bytes() == b"text"
    assert [each.name for each in (tmp_path / "far").iterdir()] == ["file"]
