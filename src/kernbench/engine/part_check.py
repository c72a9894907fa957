"""Checks of users' parts: of their classes before the simulation, and of their errors during it.

A user's class may override the methods that the machine calls at its place, and may add helpers. A method that nothing
would call is refused by name. An error names the part that failed, the simulated time, and the line of the part's code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partialmethod
from math import inf
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, FunctionType

import numpy as np

from kernbench.common.errors import InputError, KernbenchError, PartError, notes_of, text_of
from kernbench.common.program_line import is_program
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.di.part import (
    CALLED_BY_BASE,
    COMPONENT,
    COMPONENT_CALLS,
    OTHER_CALLS,
    THINKING_PART,
    PartUse,
    called_at,
    is_builtin,
)
from kernbench.di.registry import REGISTRY
from kernbench.engine.machine import Component
from kernbench.engine.thinking import ThinkingPart
from kernbench.topology.graph import Node

NOWHERE = frozenset(("run", "process"))
"""Names of activities: no place calls them, and only ThinkingPart defines them."""
_PROCESSES = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def check_parts(places: Iterable[Node]) -> None:
    """Raise InputError, with a line for each method that the classes of ``places`` define and nothing calls."""
    problems = [f"{node.id} ({node.kind}): {problem}" for node in places for problem in _problems(node)]
    if problems:
        raise InputError("\n".join(problems))


def _problems(node: Node) -> Iterator[str]:
    cls = REGISTRY.lookup(node.impl)
    if not issubclass(cls, Component):
        yield f"{node.impl} is no component: derive it from {COMPONENT}"
        return
    yield from _say_unmakeable(cls, node.impl)  # type: ignore[arg-type]  # a class is hashable
    called = called_at(node.kind)
    if node.is_extra and node.window is None and "serve" in dir(cls):
        yield f"nothing calls serve of {node.impl} at this place: it has no addresses; give it bytes in topology.yaml"
    for name in _behaviour(cls):  # type: ignore[arg-type]  # a class is hashable
        if name == "run" and "receive" in called and not issubclass(cls, ThinkingPart):
            yield f"nothing starts run of {node.impl}: derive it from {THINKING_PART}"
        elif name not in called and not (node.is_extra and _mentions(cls.__mro__, name)):
            yield f"nothing calls {name} of {node.impl} at this place; called here: {', '.join(called)}"
        elif name in CALLED_BY_BASE and not _mentions(cls.__mro__, name):
            yield f"nothing calls {name} of {node.impl}: derive it from the builtin class of {node.kind}, which does"


@cache
def _say_unmakeable(cls: type[Component], impl: str) -> tuple[str, ...]:
    """Return the reasons why the machine cannot make a part of this class."""
    reasons = []
    if inspect.isabstract(cls):
        reasons.append(f"{impl} is abstract: it has to define {', '.join(sorted(vars(cls)['__abstractmethods__']))}")
    signature = inspect.signature(cls)
    try:
        signature.bind("node", "machine")
    except TypeError:
        reasons.append(
            f"{impl} is made by {impl.rpartition('.')[2]}(node, machine), but its __init__ takes {signature}"
        )
    return tuple(reasons)


@cache
def _behaviour(cls: type[Component]) -> tuple[str, ...]:
    """Return the names of ``cls`` that its author seems to expect the machine to call: overrides and definitions."""
    return tuple(_list_overrides(cls))


def _list_overrides(cls: type[Component]) -> Iterator[str]:
    for name in sorted({name for base in cls.__mro__ for name in vars(base)}):
        if name in COMPONENT_CALLS:
            expected = inspect.getattr_static(cls, name) is not inspect.getattr_static(Component, name)
        elif name in NOWHERE:
            expected = name not in vars(ThinkingPart) or not issubclass(cls, ThinkingPart)
        else:
            expected = (name in OTHER_CALLS or _is_process(cls, name)) and not _calls_itself(cls, name)
        if expected:
            yield name


def _is_process(cls: type[Component], name: str) -> bool:
    """Return True for a public generator or coroutine, which seems to be a process of the part."""
    if name.startswith("_"):
        return False
    functions = _functions(inspect.getattr_static(cls, name))
    return any(is_process(function) for function in functions for is_process in _PROCESSES)


def _calls_itself(cls: type[Component], name: str) -> bool:
    """Return True for a helper: a user's class, the class that defines ``name``, or a class below it uses ``name``."""
    owner = next(place for place, base in enumerate(cls.__mro__) if name in vars(base))
    return _mentions((base for place, base in enumerate(cls.__mro__) if place <= owner or not is_builtin(base)), name)


def _mentions(classes: Iterable[type], name: str) -> bool:
    """Return True if some member of ``classes``, other than ``name`` itself, uses ``name``."""
    members = (value for cls in classes for key, value in vars(cls).items() if key != name)
    return any(name in _names(function.__code__) for value in members for function in _functions(value))


def _functions(value: object) -> tuple[FunctionType, ...]:
    """Return the functions behind an attribute of a class."""
    match value:
        case property():
            candidates: tuple[object, ...] = (value.fget, value.fset)
        case cached_property():
            candidates = (value.func,)
        case staticmethod() | classmethod():
            candidates = (value.__func__,)
        case partialmethod():
            candidates = (value.func,)
        case _:
            candidates = (value,)
    plain = (inspect.unwrap(candidate) for candidate in candidates if isinstance(candidate, FunctionType))
    return tuple(function for function in plain if isinstance(function, FunctionType))


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and its inner functions use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


@value
class _Call:
    """A call on the traceback of an error, and the line that it had reached."""

    frame: FrameType
    line: int

    @property
    def part(self) -> Component | None:
        """The user's part whose method is called; None before ``Component.__init__`` has set its node."""
        owner = self.frame.f_locals.get("self")
        is_users = isinstance(owner, Component) and not is_builtin(type(owner))
        return owner if is_users and "clock" in vars(owner) else None

    @property
    def is_users(self) -> bool:
        return is_program(Path(self.frame.f_code.co_filename))

    @property
    def place(self) -> str:
        return f"at {self.frame.f_code.co_filename}:{self.line}"


def name_failure(error: Exception) -> Exception:
    """Return the PartError for an ``error`` in the code of a user's part; else ``error`` itself."""
    calls = [*_calls(error)]
    parts = [part for part in (call.part for call in calls) if part is not None]
    if isinstance(error, PartError) or not parts:
        return error
    part, places = parts[-1], [call.place for call in calls if call.is_users]
    where = places[-1] if places else f"its class is at {_source(type(part))}"
    error_type = "" if isinstance(error, KernbenchError) else f"{type(error).__name__}: "
    time = f"{ps_to_ns(part.clock.time):.12g} ns"
    failure = PartError(f"{part.node.id} ({part.node.impl}) failed at {time}: {error_type}{text_of(error)} ({where})")
    for note in notes_of(error):
        failure.add_note(note)
    failure.__cause__ = error
    return failure


def ask_energy(part: Component, use: PartUse) -> float | str:
    """Return the energy in pJ that a user's part states for ``use``, or a text about its error, with class and line."""
    label = f"{part.node.impl}: energy_pj"
    try:
        energy: object = part.energy_pj(use)
    except Exception as error:
        places = [call.place for call in _calls(error) if call.is_users]
        where = places[-1] if places else _source(type(part))
        return f"{label} raised {type(error).__name__}: {text_of(error)} ({where}); the part counts 0"
    if isinstance(energy, int | float | np.number) and not isinstance(energy, bool) and 0 <= energy < inf:
        return float(energy)
    where = _line_of(type(part).energy_pj) or _source(type(part))
    return f"{label} returned {energy!r}, must be a number of pJ, at least 0 ({where}); the part counts 0"


def _line_of(function: Callable[..., object]) -> str:
    """Return file and line of a function; empty if it has no code."""
    function = inspect.unwrap(function)
    code = function.__code__ if isinstance(function, FunctionType) else None
    return "" if code is None else f"at {code.co_filename}:{code.co_firstlineno}"


def name_users_parts(error: Exception, parts: Iterable[Component]) -> None:
    """Add a note that lists the users' parts to an error outside any part's code, such as an invalid time."""
    users = {part.node.impl: part.node.kind for part in parts if not is_builtin(type(part))}
    if users:
        error.add_note(f"users' parts in this machine: {', '.join(f'{i} ({kind})' for i, kind in users.items())}")


def _calls(error: BaseException) -> Iterator[_Call]:
    """Yield the calls on an error's traceback, outermost first, through the copies that SimPy makes of errors."""
    yield from (_Call(frame, line) for frame, line in walk_tb(error.__traceback__))
    origin = error.__cause__
    if type(origin) is type(error) and origin.args == error.args:
        yield from _calls(origin)


def _source(cls: type[Component]) -> str:
    """Return file and line of a class; only the file if its source cannot be found."""
    try:
        return f"{inspect.getfile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except OSError:
        return inspect.getfile(cls)
