"""Stdout and stderr during a command: prints of programs, documents, and write errors."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TextIO, cast

STDOUT, STDERR = 1, 2


class OutputLost(KeyboardInterrupt):
    """Stdout accepts no more output. The command ends as by Ctrl-C, so that no program prints without a reader."""


class CommandOutput:
    """The output of one command, as a context manager.

    Inside, an error of stdout ends the command and an error of stderr is ignored. Tables and documents go to
    ``results``, even if a program replaces ``sys.stdout``. After ``reserve``, nothing else goes there. ``lost`` is the
    error of stdout, or None while stdout works.
    """

    def __init__(self) -> None:
        self.lost: OSError | None = None
        self.printed = False
        self.results = cast(TextIO, _NoStream())
        self._reserved = False
        self._told = GuardedStream(_NoStream(), self._ignore)
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            self._undo.callback(setattr, sys, name, stream)
        self.results = sys.stdout = cast(TextIO, GuardedStream(_usable(sys.stdout), self._lose))
        self._told = GuardedStream(_usable(sys.stderr), self._ignore)
        sys.stderr = cast(TextIO, self._told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def broken(self) -> bool:
        """True if stdout was a pipe whose reader has closed it."""
        return self.lost is not None and self.lost.errno == errno.EPIPE

    def reserve(self) -> None:
        """Reserve stdout for documents: all prints of programs go to stderr from now on."""
        if self._reserved:
            return
        self._reserved = True
        if _descriptor(self.results) == STDOUT:
            results = self._undo.enter_context(_move_away(self.results))
            self.results = cast(TextIO, GuardedStream(results, self._lose))
        sys.stdout = sys.stderr

    def print_document(self, text: str) -> None:
        """Print a result."""
        self.printed = True
        self.results.write(f"{text}\n")
        self.results.flush()

    def flush(self) -> None:
        """Flush all output. Raises OutputLost at the first error of stdout only."""
        self.results.flush()

    def _lose(self, error: OSError) -> None:
        if self.lost is None:
            self.lost = error
            if self.broken:  # as command-line tools do: end without a message
                self._told.drop()
            raise OutputLost from error

    def _ignore(self, _: OSError) -> None:
        """Ignore an error of stderr: no stream is left to report it on."""


class GuardedStream:
    """A stream that reports its first error to ``failed`` and drops all later output.

    A program cannot close this stream. All other operations go to the inner stream.
    """

    def __init__(self, inner: Any, failed: Callable[[OSError], None]) -> None:
        self._inner, self._failed, self._dead = inner, failed, False

    def write(self, data: Any) -> int:
        """Write the data, or drop it after an error."""
        self._try(self._inner.write, data)
        return len(data)

    def writelines(self, lines: Any) -> None:
        """Write all lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the inner stream."""
        self._try(self._inner.flush)

    def close(self) -> None:
        """Flush the stream and leave it open: the program does not own it."""
        self.flush()

    def isatty(self) -> bool:
        """Return True if the stream is a terminal. A closed stream is none."""
        try:
            return bool(self._inner.isatty())
        except ValueError:
            return False

    def drop(self) -> None:
        """Drop all later output."""
        self._dead = True

    @property
    def buffer(self) -> GuardedStream:
        """The guarded byte stream below."""
        return GuardedStream(self._inner.buffer, self._failed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _try(self, act: Callable[..., object], *data: Any) -> None:
        if not self._dead:
            try:
                act(*data)
            except OSError as error:
                self._fail(error)
            except UnicodeError:
                raise
            except ValueError:  # a program has closed the inner stream
                self._fail(OSError(errno.EBADF, "it is closed"))

    def _fail(self, error: OSError) -> None:
        self._dead = True
        self._failed(error)


class _NoStream(io.StringIO):
    """A replacement for a stream that the process started without."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def _usable(stream: TextIO | None) -> TextIO:
    return _NoStream() if stream is None or stream.closed else stream


def _descriptor(stream: TextIO | None) -> int | None:
    """Return the file descriptor of a stream, or None if it has none."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


@contextmanager
def _move_away(stdout: TextIO) -> Iterator[TextIO]:
    """Redirect the process's stdout to stderr inside the block, and yield a stream to the original stdout."""
    stdout.flush()
    # Write errors are reported at each write, so errors of the final close are suppressed.
    with suppress(OSError), open(os.dup(STDOUT), "w", encoding=stdout.encoding, errors=stdout.errors) as results:
        _send_to_stderr(STDOUT)
        try:
            yield results
        finally:
            with suppress(OutputLost):  # this output was printed by a program
                stdout.flush()
            os.dup2(results.fileno(), STDOUT)


def end_streams(*, reserved: bool) -> None:
    """Flush both streams at the end of the process. ``reserved``: redirect later output of stdout to stderr.

    Earlier write errors have been reported already.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                _discard(stream.fileno())
            except ValueError:  # a program has closed the stream
                pass
    if reserved and _descriptor(sys.stdout) == STDOUT:
        _send_to_stderr(STDOUT)


def _send_to_stderr(descriptor: int) -> None:
    """Redirect a file descriptor to stderr, or discard its output if the process has no stderr."""
    try:
        os.dup2(STDERR, descriptor)
    except OSError:
        _discard(descriptor)


def _discard(descriptor: int) -> None:
    """Discard all output to a file descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
