"""Stdout and stderr while a command runs: what programs print, where documents go, and what cannot be written."""

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
    """Stdout takes nothing more: the command ends as by Ctrl-C, so that no program prints on for nobody."""


class CommandOutput:
    """The output of one command; a context manager. ``lost``: why stdout took no more; None while it does.

    Inside, the errors of stdout end the command and those of stderr are ignored. ``results`` is where tables and
    documents go, whatever a program makes of ``sys.stdout``; after ``reserve`` nothing else goes there.
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
        """True if stdout was a pipe that nobody reads any more."""
        return self.lost is not None and self.lost.errno == errno.EPIPE

    def reserve(self) -> None:
        """From now on stdout is for documents: what programs print by any means goes to stderr."""
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
        """Get everything out. OutputLost when that fails, unless it had before."""
        self.results.flush()

    def _lose(self, error: OSError) -> None:
        if self.lost is None:
            self.lost = error
            if self.broken:  # as it is usual, without a word
                self._told.drop()
            raise OutputLost from error

    def _ignore(self, _: OSError) -> None:
        """Nobody can be told."""


class GuardedStream:
    """A stream whose errors are told to ``failed`` once; afterwards what is written is dropped.

    A program cannot close it. What it does not do itself is done by the stream.
    """

    def __init__(self, inner: Any, failed: Callable[[OSError], None]) -> None:
        self._inner, self._failed, self._dead = inner, failed, False

    def write(self, data: Any) -> int:
        """Write, or drop."""
        self._try(self._inner.write, data)
        return len(data)

    def writelines(self, lines: Any) -> None:
        """Write all."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what has not been written."""
        self._try(self._inner.flush)

    def close(self) -> None:
        """Flush: it is not the program's own."""
        self.flush()

    def isatty(self) -> bool:
        """Tell whether it is a terminal; one that a program has closed is none."""
        try:
            return bool(self._inner.isatty())
        except ValueError:
            return False

    def drop(self) -> None:
        """Write nothing any more."""
        self._dead = True

    @property
    def buffer(self) -> GuardedStream:
        """The bytes below, guarded as well."""
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
            except ValueError:  # a program has closed what is below
                self._fail(OSError(errno.EBADF, "it is closed"))

    def _fail(self, error: OSError) -> None:
        self._dead = True
        self._failed(error)


class _NoStream(io.StringIO):
    """In place of a stream that the process was started without."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def _usable(stream: TextIO | None) -> TextIO:
    return _NoStream() if stream is None or stream.closed else stream


def _descriptor(stream: TextIO | None) -> int | None:
    """The number of the file behind a stream; None when there is none."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


@contextmanager
def _move_away(stdout: TextIO) -> Iterator[TextIO]:
    """Inside, what is written to the process's stdout goes to stderr; the stream goes where stdout went."""
    stdout.flush()
    # Errors in what it writes are told when that is written.
    with suppress(OSError), open(os.dup(STDOUT), "w", encoding=stdout.encoding, errors=stdout.errors) as results:
        _send_to_stderr(STDOUT)
        try:
            yield results
        finally:
            with suppress(OutputLost):  # these were a program's prints
                stdout.flush()
            os.dup2(results.fileno(), STDOUT)


def end_streams(*, reserved: bool) -> None:
    """The process ends: errors in what is left to write have been told. ``reserved``: nothing more goes to stdout."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                _discard(stream.fileno())
            except ValueError:  # a program has closed it
                pass
    if reserved and _descriptor(sys.stdout) == STDOUT:
        _send_to_stderr(STDOUT)


def _send_to_stderr(descriptor: int) -> None:
    """Make a descriptor of the process another name of its stderr, or of nothing if it has none."""
    try:
        os.dup2(STDERR, descriptor)
    except OSError:
        _discard(descriptor)


def _discard(descriptor: int) -> None:
    """Discard all that is written to a descriptor of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
