"""Every error kernbench raises on purpose, in one tree.

KernbenchError
├── InputError                 what the user gave is wrong: the CLI exits with 2
│   ├── ConfigError            a YAML file or --set; carries every problem of the file
│   ├── PhysAddrError          a field or a value outside the address format
│   ├── UnknownNameError       a name nobody registered; lists what exists
│   ├── UnreadableFileError    what is no file to read as an input; says what it is
│   ├── NoMachineError         a program asks for the machine where there is none
│   ├── SecondThreadError      a program calls the machine in more than one thread
│   └── BenchError             a bench that cannot be found, loaded or parametrised
└── RunError                   the run failed: the CLI exits with 1
    ├── AllocationError        a memory is full, or a free that fits no allocation
    ├── AddressFaultError      a PE touched a virtual address that nothing maps
    ├── KernelError            a kernel did what the language forbids
    │   └── IpcqInvalidDirection   a queue that the PE does not have
    ├── IpcqError              queues that cannot be installed, a message that fits none or that nobody received
    ├── SimulationDeadlock     nothing can happen any more and somebody still waits
    │   └── IpcqDeadlock       … for a queue; says who waits for whom
    ├── AbandonedError         a request that was given up, since something else has failed
    ├── TransportError         a route, link or injection the network cannot carry
    ├── PartError              the code of a user's part failed
    ├── UnsupportedError       a well-formed request that the machine cannot do
    ├── LimitReached           a run that may go no further, in simulated time or in the user's
    ├── NoDataError            a value is read in a run that does not have it
    ├── ExplanationError       what explains a run has failed; the run itself stands
    ├── ProgramExitError       a bench, a rank or a kernel left by sys.exit
    └── VerificationError      numbers that are not what was expected

RunStopped is a KeyboardInterrupt: it ends a run from outside, wherever that is.

Beside the tree: the hint at a near name that an unknown one is met with, and what makes an exit of a program an error.

SimPy rebuilds exceptions as ``type(e)(*e.args)``: every constructor argument goes to ``super().__init__``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from kernbench.common.ids import pe_name
from kernbench.common.values import value


def text_of(error: BaseException) -> str:
    """Return the text of an error; it may be of a user's class whose text cannot be had."""
    try:
        return str(error)
    except Exception as broken:
        return f"(its text cannot be had: {type(broken).__name__})"


class KernbenchError(Exception):
    """Root of the tree."""

    exit_code = 1


class InputError(KernbenchError):
    """The user gave something that is wrong."""

    exit_code = 2


class RunError(KernbenchError):
    """The input was fine and the run failed."""


@value(kw_only=True)
class Problem:
    """One thing wrong with a configuration file.

    ``line`` and ``column`` count from 1; 0 means that the value did not come from a line (``--set``).
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
    """A configuration that cannot be used; ``problems`` holds all of them, in file order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


class PhysAddrError(InputError, ValueError):
    """A field out of range, a reserved range, or a value wider than the format."""


class UnknownNameError(InputError, LookupError):
    """A name that nobody registered: says which there are, and the one that is nearest."""

    def __init__(self, what: str, name: str, known: tuple[str, ...], hint: str = "") -> None:
        super().__init__(what, name, known, hint)
        self.what, self.name, self.known, self.hint = what, name, known, hint

    def __str__(self) -> str:
        return f"unknown {self.what} {self.name!r}; {there_are(self.name, self.known, self.hint)}"


class UnreadableFileError(InputError):
    """A file that cannot be read as an input of the user's.

    ``why``: what it is, and what can be read. ``missing``: there is nothing of that name.
    """

    def __init__(self, path: str, why: str, missing: bool = False) -> None:
        super().__init__(path, why, missing)
        self.path, self.why, self.missing = path, why, missing

    @property
    def reason(self) -> str:
        """The text behind the path."""
        return self.why if self.missing else f"cannot be read: {self.why}"

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NoMachineError(InputError):
    """A program asks for the machine outside of a run."""


class SecondThreadError(InputError):
    """A thread calls the machine, and another one has called it before: says where, and which ones."""


class BenchError(InputError):
    """A bench that cannot be found, loaded or parametrised."""


class AllocationError(RunError):
    """A memory is full, or a free does not fit an allocation."""


class AddressFaultError(RunError):
    """A PE touched a virtual address that nothing maps."""


class KernelError(RunError):
    """A kernel did what the language forbids."""


class IpcqInvalidDirection(KernelError):  # noqa: N818 - the name users know
    """A kernel named a queue that its PE does not have, or cannot use that way."""


class UnmodelledError(InputError):
    """An operator has no kernel, in a run that allows none that the host computes."""


class NoDataError(RunError):
    """A value is read in a run that keeps no data, or has stopped keeping it."""


class IpcqError(RunError):
    """Queues that cannot be installed as asked, a message or a credit that belongs to none, or that nobody received."""


class SimulationDeadlock(RunError):  # noqa: N818 - the name users know
    """Nothing can happen any more and somebody still waits.

    ``verdict``: what a reader needs first; ``groups``: who waits, a heading and a line for each, of which ``str`` shows
    the first 20; ``details``: what only ``full`` shows.
    """

    def __init__(self, verdict: str, groups: tuple[tuple[str, ...], ...] = (), details: tuple[str, ...] = ()) -> None:
        super().__init__(verdict, groups, details)
        self.verdict, self.groups, self.details = verdict, groups, details

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(line for group in self.groups for line in _shorten_group(group))])

    def reword(self, write: Callable[[str], str]) -> SimulationDeadlock:
        """Return the same error with every line as ``write`` writes it."""
        groups = tuple(tuple(map(write, group)) for group in self.groups)
        return type(self)(write(self.verdict), groups, tuple(map(write, self.details)))

    @property
    def full(self) -> str:
        """All there is to say."""
        return "\n".join([self.verdict, *(line for group in self.groups for line in group), *self.details])


def _shorten_group(group: tuple[str, ...], most: int = 20) -> tuple[str, ...]:
    """Return the heading of a group and its first lines."""
    more = len(group) - 1 - most
    return (*group[: most + 1], f"  … and {more} more (-v shows all)") if more > 0 else group


class IpcqDeadlock(SimulationDeadlock):
    """PEs wait for queues, and nothing can happen any more."""


class AbandonedError(RunError):
    """A request that was given up, since something else has failed."""


class TransportError(RunError):
    """A route, link or injection that the network cannot carry."""


class PartError(RunError):
    """The code of a user's part failed: it names the part, the simulated time and the line."""


class UnsupportedError(RunError):
    """A well-formed request that this machine cannot do."""


class LimitReached(RunError):  # noqa: N818 - it says what happened
    """A run that was stopped because it may go no further, in simulated time or in the user's."""


class ExplanationError(RunError):
    """What explains, draws or reports a run has failed; the run itself stands."""


class ProgramExitError(RunError):
    """A bench, a rank or a kernel left by ``sys.exit(code)``: it has not come to its end, whatever the code."""

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
    """Numbers that are not what was expected."""


class RunStopped(KeyboardInterrupt):
    """The run has to end where it is, as by Ctrl-C, which no program catches by accident. ``why``: its failure."""

    def __init__(self, why: RunError) -> None:
        super().__init__(why)
        self.why = why

    @property
    def failure(self) -> RunError:
        """``why``, with the place where the run was: traceback and notes."""
        for note in notes_of(self):
            self.why.add_note(note)
        return self.why.with_traceback(self.__traceback__)


class KernelNote(str):
    """On the error of a kernel: ``on sip0.cube0.pe1, kernel 'gemm'``. It knows both."""

    __slots__ = ("kernel", "pe")

    def __new__(cls, pe: tuple[int, int, int], kernel: str) -> KernelNote:
        """Make the note of ``kernel`` on ``pe`` (sip, cube, pe)."""
        note = super().__new__(cls, f"on {pe_name(pe)}, kernel {kernel!r}")
        note.pe, note.kernel = pe, kernel
        return note

    pe: tuple[int, int, int]
    kernel: str

    def __getnewargs__(self) -> tuple[tuple[int, int, int], str]:  # type: ignore[override]
        """Return the arguments for pickle: errors of worker processes have notes."""
        return self.pe, self.kernel


def notes_of(error: BaseException) -> Iterator[str]:
    """Yield the notes that were added to an error on its way up."""
    yield from vars(error).get("__notes__", ())


SHORTEST = 3
"""Letters of a name that is compared: shorter ones are all close to each other."""


def close_to(name: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'? `` for the known name that is nearest; nothing when none is close.

    Capitals and ``_`` for ``-`` are no difference.
    """
    wanted, alike = _fold(str(name)), {_fold(each): each for each in known}
    close = difflib.get_close_matches(wanted, alike, n=1) if len(wanted) >= SHORTEST else []
    return f"did you mean {alike[close[0]]!r}? " if close else ""


def there_are(name: object, known: Sequence[str], hint: str = "") -> str:
    """Return ``there are: a, b; did you mean 'a'? hint``: what is said where ``name`` is none of ``known``."""
    listed = f"there are: {', '.join(known)}"
    more = f"{close_to(name, known)}{hint}".rstrip()
    return f"{listed}; {more}" if more else listed


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")


def exit_error(leaving: BaseException) -> RunError:
    """Return the error for leaving a program, with the traceback of the ``sys.exit`` or ``raise``."""
    error = ProgramExitError(leaving.code) if isinstance(leaving, SystemExit) else _exit_failure(leaving)
    return error.with_traceback(leaving.__traceback__)


def _exit_failure(leaving: BaseException) -> RunError:
    return RunError(": ".join(filter(None, [f"left by {type(leaving).__name__}", text_of(leaving)])))


@contextmanager
def exit_is_failure() -> Iterator[None]:
    """Make leaving the code of a user an error: ``sys.exit`` a ProgramExitError; only Ctrl-C stays what it is."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as leaving:  # SystemExit, a cancelled task, a test framework's own way to fail
        raise exit_error(leaving) from None
