"""Every error kernbench raises on purpose, in one tree.

KernbenchError
├── InputError                 the user's input is wrong: the CLI exits with 2
│   ├── ConfigError            a YAML file or --set; carries every problem of the file
│   ├── PhysAddrError          a field or a value outside the address format
│   ├── UnknownNameError       a name that is not registered; lists the registered names
│   ├── UnreadableFileError    an input that is not a readable file; names its type
│   ├── NoMachineError         a program asks for the machine outside of a run
│   ├── SecondThreadError      a program calls the machine in more than one thread
│   ├── UnmodelledError        an operator without a kernel, in a run that does not allow the host to compute it
│   └── BenchError             a bench that cannot be found, loaded or parametrised
└── RunError                   the run failed: the CLI exits with 1
    ├── AllocationError        a memory is full, or a free that fits no allocation
    ├── AddressFaultError      a PE touched a virtual address that is not mapped
    ├── KernelError            a kernel did what the language forbids
    │   └── IpcqInvalidDirection   a queue that the PE does not have
    ├── IpcqError              queues that cannot be installed; a message without a queue or without a receiver
    ├── SimulationDeadlock     no event is left and a component still waits
    │   └── IpcqDeadlock       … for a queue; lists each waiting PE and the PE it waits for
    ├── AbandonedError         a request that was abandoned because another one failed
    ├── TransportError         a route, link or injection the network cannot carry
    ├── PartError              the code of a user's component failed
    ├── UnsupportedError       a well-formed request that the machine cannot do
    ├── LimitReached           a run that reached its limit of simulated time or of wall-clock time
    ├── NoDataError            a program reads a value in a run that does not store it
    ├── ExplanationError       the explanation, drawing or report of a run failed; the run itself is valid
    ├── ProgramExitError       a bench, a rank or a kernel left by sys.exit
    └── VerificationError      numbers that differ from the expected ones

RunStopped is a KeyboardInterrupt: it ends a run from outside, at any point.

The file also holds two helpers: the hint at the nearest name, and the conversion of a program's exit to an error.

SimPy rebuilds exceptions as ``type(e)(*e.args)``: every constructor argument goes to ``super().__init__``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from kernbench.common.ids import pe_name
from kernbench.common.values import value


def text_of(error: BaseException) -> str:
    """Return the text of an error, or a replacement if its ``__str__`` raises, as a user's class may."""
    try:
        return str(error)
    except Exception as broken:
        return f"(its text is not available: {type(broken).__name__})"


class KernbenchError(Exception):
    """Root of the tree."""

    exit_code = 1


class InputError(KernbenchError):
    """Wrong input of the user."""

    exit_code = 2


class RunError(KernbenchError):
    """A failure of a run whose input was valid."""


@value(kw_only=True)
class Problem:
    """A problem of a configuration file.

    ``line`` and ``column`` count from 1; 0 means that the value has no line (``--set``).
    """

    source: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        at = f"{self.path}: " if self.path else ""
        return f"{where}: {at}{self.message}"


class ConfigError(InputError):
    """An invalid configuration; ``problems`` lists all its problems in file order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


class PhysAddrError(InputError, ValueError):
    """A field out of range, a reserved range, or a value wider than the format."""


class UnknownNameError(InputError, LookupError):
    """A name that is not registered; the text lists the registered names and the nearest one.

    ``kind`` is the noun for the name, ``names`` are the registered names, ``hint`` ends the text.
    """

    def __init__(self, kind: str, name: str, names: tuple[str, ...], hint: str = "") -> None:
        super().__init__(kind, name, names, hint)
        self.kind, self.name, self.names, self.hint = kind, name, names, hint

    def __str__(self) -> str:
        return f"unknown {self.kind} {self.name!r}; {there_are(self.name, self.names, self.hint)}"


class UnreadableFileError(InputError):
    """An input file that cannot be read.

    ``why`` describes what the path leads to and which files can be read. ``missing``: nothing exists at the path.
    """

    def __init__(self, path: str, why: str, missing: bool = False) -> None:
        super().__init__(path, why, missing)
        self.path, self.why, self.missing = path, why, missing

    @property
    def reason(self) -> str:
        """The part of the error's text that follows the path."""
        return self.why if self.missing else f"cannot be read: {self.why}"

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NoMachineError(InputError):
    """A program asks for the machine outside of a run."""


class SecondThreadError(InputError):
    """A second thread calls the machine; the text names both threads and the call."""


class BenchError(InputError):
    """A bench that cannot be found, loaded or parametrised."""


class AllocationError(RunError):
    """A memory is full, or a free does not fit an allocation."""


class AddressFaultError(RunError):
    """A PE touched a virtual address that is not mapped."""


class KernelError(RunError):
    """A kernel did what the language forbids."""


class IpcqInvalidDirection(KernelError):  # noqa: N818 - the name users know
    """A kernel named a queue that its PE does not have, or cannot use that way."""


class UnmodelledError(InputError):
    """An operator has no kernel, and the run does not allow the host to compute it."""


class NoDataError(RunError):
    """A program reads a value in a run that stores no data, or has stopped storing data."""


class IpcqError(RunError):
    """A failure of queues.

    The queues cannot be installed, a message or credit belongs to no queue, or no PE received a message.
    """


class SimulationDeadlock(RunError):  # noqa: N818 - the name users know
    """A run without a further event in which a component or a program still waits.

    ``verdict`` is the most important line. Each of ``groups`` is a heading, then one line for each waiting component or
    program. ``str`` shows the first 20 lines; only ``full`` shows ``details``.
    """

    def __init__(self, verdict: str, groups: tuple[tuple[str, ...], ...] = (), details: tuple[str, ...] = ()) -> None:
        super().__init__(verdict, groups, details)
        self.verdict, self.groups, self.details = verdict, groups, details

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(line for group in self.groups for line in _shorten_group(group))])

    def reword(self, write: Callable[[str], str]) -> SimulationDeadlock:
        """Return the same error with ``write`` applied to every line."""
        groups = tuple(tuple(map(write, group)) for group in self.groups)
        return type(self)(write(self.verdict), groups, tuple(map(write, self.details)))

    @property
    def full(self) -> str:
        """The text with all lines of all groups, and the details."""
        return "\n".join([self.verdict, *(line for group in self.groups for line in group), *self.details])


def _shorten_group(group: tuple[str, ...], most: int = 20) -> tuple[str, ...]:
    """Return the heading of a group and its first lines."""
    more = len(group) - 1 - most
    return (*group[: most + 1], f"  … and {more} more (-v shows all)") if more > 0 else group


class IpcqDeadlock(SimulationDeadlock):
    """PEs wait for queues, and no event is left."""


class AbandonedError(RunError):
    """A request that was abandoned because another one failed."""


class TransportError(RunError):
    """A route, link or injection that the network cannot carry."""


class PartError(RunError):
    """The code of a user's component failed; the text names the component, the simulated time and the line."""


class UnsupportedError(RunError):
    """A well-formed request that this machine cannot do."""


class LimitReached(RunError):  # noqa: N818 - it says what happened
    """A run that was stopped at its limit of simulated time or of wall-clock time."""


class ExplanationError(RunError):
    """The explanation, drawing or report of a run failed; the run itself is valid."""


class ProgramExitError(RunError):
    """A bench, a rank or a kernel left by ``sys.exit(code)``; even with ``code`` 0 the program did not complete."""

    def __init__(self, code: object) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        if isinstance(self.code, str):
            return f"left by sys.exit: {self.code}"
        return f"left by sys.exit({'' if self.code is None else self._code_text})"

    @property
    def _code_text(self) -> str:
        try:
            return repr(self.code)
        except Exception:  # of a user's class
            return f"a {type(self.code).__name__}"


class VerificationError(RunError, AssertionError):
    """Numbers that differ from the expected ones."""


class RunStopped(KeyboardInterrupt):
    """A request to end the run at once, like Ctrl-C; no program catches it by accident.

    ``why`` is the error of the run.
    """

    def __init__(self, why: RunError) -> None:
        super().__init__(why)
        self.why = why

    @property
    def failure(self) -> RunError:
        """``why`` with the traceback and the notes of the point where the run stopped."""
        for note in notes_of(self):
            self.why.add_note(note)
        return self.why.with_traceback(self.__traceback__)


class KernelNote(str):
    """A note on the error of a kernel: ``on sip0.cube0.pe1, kernel 'gemm'``.

    ``pe``, ``kernel`` and ``called_at``, the line that launched it if known, are attributes.
    """

    __slots__ = ("called_at", "kernel", "pe")

    def __new__(cls, pe: tuple[int, int, int], kernel: str, called_at: str = "") -> KernelNote:
        """Make the note of ``kernel`` on ``pe`` (sip, cube, pe)."""
        launched = f", launched at {called_at}" if called_at else ""
        note = super().__new__(cls, f"on {pe_name(pe)}, kernel {kernel!r}{launched}")
        note.pe, note.kernel, note.called_at = pe, kernel, called_at
        return note

    pe: tuple[int, int, int]
    kernel: str
    called_at: str

    def __getnewargs__(self) -> tuple[tuple[int, int, int], str, str]:  # type: ignore[override]
        """Return the arguments for pickle: errors of worker processes have notes."""
        return self.pe, self.kernel, self.called_at


def notes_of(error: BaseException) -> Iterator[str]:
    """Yield the notes that were added to an error on its way up."""
    yield from vars(error).get("__notes__", ())


SHORTEST = 3
"""The length of the shortest name for which errors suggest a similar name; shorter names all resemble each other."""


def close_to(name: object, names: Iterable[str]) -> str:
    """Return ``did you mean 'x'? `` for the nearest of ``names``, or an empty text when none is close.

    The comparison ignores case and treats ``_`` and ``-`` as equal.
    """
    wanted, alike = _fold(str(name)), {_fold(candidate): candidate for candidate in names}
    close = difflib.get_close_matches(wanted, alike, n=1) if len(wanted) >= SHORTEST else []
    return f"did you mean {alike[close[0]]!r}? " if close else ""


def there_are(name: object, names: Sequence[str], hint: str = "") -> str:
    """Return ``there are: a, b; did you mean 'a'? hint``, the text for a ``name`` that is not among ``names``."""
    listed = f"there are: {', '.join(names)}"
    more = f"{close_to(name, names)}{hint}".rstrip()
    return f"{listed}; {more}" if more else listed


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")


def exit_error(leaving: BaseException) -> RunError:
    """Return the error for a program's exit, with the traceback of the ``sys.exit`` or ``raise``."""
    error = ProgramExitError(leaving.code) if isinstance(leaving, SystemExit) else _exit_failure(leaving)
    return error.with_traceback(leaving.__traceback__)


def _exit_failure(leaving: BaseException) -> RunError:
    return RunError(": ".join(filter(None, [f"left by {type(leaving).__name__}", text_of(leaving)])))


@contextmanager
def exit_is_failure() -> Iterator[None]:
    """Convert an exit of user code inside the block to an error: ``sys.exit`` to ProgramExitError.

    Exceptions and Ctrl-C pass unchanged.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as leaving:  # SystemExit, a cancelled task, or a test framework's exception for a failure
        raise exit_error(leaving) from None
