"""Errors of users' parts: which part it was, when, and the line of its code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from kernbench.common.errors import KernbenchError, PartError, notes_of, text_of
from kernbench.common.program_line import is_program
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.machine import Component, is_builtin


@value
class _Call:
    """A call that an error has come through, and the line where."""

    frame: FrameType
    line: int

    @property
    def part(self) -> Component | None:
        """The part of a user's whose method it is, if it has been made so far that it knows its node."""
        owner = self.frame.f_locals.get("self")
        is_users = isinstance(owner, Component) and not is_builtin(type(owner))
        return owner if is_users and "clock" in vars(owner) else None

    @property
    def is_users(self) -> bool:
        return is_program(Path(self.frame.f_code.co_filename))

    @property
    def place(self) -> str:
        return f"at {self.frame.f_code.co_filename}:{self.line}"


def named_failure(error: Exception) -> Exception:
    """The PartError that ``error`` is if it came out of the code of a user's part; else itself."""
    calls = [*_calls(error)]
    parts = [part for part in (call.part for call in calls) if part is not None]
    if isinstance(error, PartError) or not parts:
        return error
    part, places = parts[-1], [call.place for call in calls if call.is_users]
    where = places[-1] if places else f"its class is at {_source(type(part))}"
    what = "" if isinstance(error, KernbenchError) else f"{type(error).__name__}: "
    time = f"{ps_to_ns(part.clock.time):.12g} ns"
    failure = PartError(f"{part.node.id} ({part.node.impl}) failed at {time}: {what}{text_of(error)} ({where})")
    for note in notes_of(error):
        failure.add_note(note)
    failure.__cause__ = error
    return failure


def name_users_parts(error: Exception, parts: Iterable[Component]) -> None:
    """Note on an error that comes from nobody's code, such as a time that is none, which users' parts there are."""
    users = {part.node.impl: part.node.kind for part in parts if not is_builtin(type(part))}
    if users:
        error.add_note(f"parts of users' in this machine: {', '.join(f'{i} ({kind})' for i, kind in users.items())}")


def _calls(error: BaseException) -> Iterator[_Call]:
    """The calls that an error has come through, from the outside in; SimPy hands copies of errors on."""
    yield from (_Call(frame, line) for frame, line in walk_tb(error.__traceback__))
    origin = error.__cause__
    if type(origin) is type(error) and origin.args == error.args:
        yield from _calls(origin)


def _source(cls: type[Component]) -> str:
    """File and line of a class; of one that was made by a call, the file."""
    try:
        return f"{inspect.getfile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except OSError:
        return inspect.getfile(cls)
