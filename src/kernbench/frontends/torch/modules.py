"""Origin of an operator in a PyTorch program: the module whose forward calls it, and the program's line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from types import FrameType
from weakref import WeakKeyDictionary

import torch
import typing_extensions
from torch.nn import Module, ModuleList
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from kernbench.common.values import state, value
from kernbench.runtime_api.context import current_context

_LIBRARIES = (
    *[os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(__file__))],
    typing_extensions.__file__,  # PyTorch wraps deprecated functions with it
)
_WRAPPED = "_orig_mod"
"""The name that the result of ``torch.compile`` has for the module of the program"""
MOST_NOTED = 1 << 16
"""Maximum number of backward nodes whose module is stored."""


@value
class _ModuleNames:
    """The names of the parts of a module, and the list of each part that is a member of a ModuleList, by identity."""

    names: dict[int, str]
    lists: dict[int, tuple[str, int]]

    @classmethod
    def of(cls, module: Module) -> _ModuleNames:
        parts = list(module.named_modules())
        lists = {
            id(member): (without_wrappers(name) or type(part).__name__, len(part))
            for name, part in parts
            if isinstance(part, ModuleList)
            for member in part
        }
        return cls({id(part): without_wrappers(name) for name, part in parts}, lists)


def without_wrappers(name: str) -> str:
    """Return the dotted name of a module, without the modules that ``torch.compile`` puts around it."""
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


@value
class ProgramPlace:
    """A file and line of the program. ``str()`` is short: ``model.py:52``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@value
class TracedCall:
    """Calls of the program that a kernel of a compiled graph carries out: their module, operators and first line.

    ``module``: their nearest common module. ``covers``: the modules inside of it that make the calls.
    """

    module: str
    operators: str
    place: ProgramPlace | None
    covers: tuple[str, ...] = ()


@state
class ModulePlaces:
    """The modules whose forward is running, and those whose forward created the nodes of backward.

    The outermost running member of a ModuleList is at ``_member_depth`` of the stack, since ``_member_s``.
    ``call``: the call of the program that a compiled graph carries out now. The program called the graph in the module
    ``graph_module``, from the line ``graph_place``.
    """

    call: TracedCall | None = None
    graph_module: str = ""
    graph_place: ProgramPlace | None = None
    _stack: list[str] = field(default_factory=list)
    _names: WeakKeyDictionary[Module, _ModuleNames] = field(default_factory=WeakKeyDictionary)
    _roots: list[Module] = field(default_factory=list)
    _by_node: dict[int, str] = field(default_factory=dict)
    _member_depth: int | None = None
    _member_s: float = 0.0

    def enter(self, module: Module) -> None:
        """Record that the forward of ``module`` begins. Names are relative to the outermost running module."""
        if not self._roots:
            self._member_depth = None
            if module not in self._names:
                self._names[module] = _ModuleNames.of(module)
        self._roots.append(module)
        names = self._names[self._roots[0]]
        self._stack.append(names.names.get(id(module), type(module).__name__))
        if self._member_depth is None and id(module) in names.lists:
            self._member_depth, self._member_s = len(self._stack), time.monotonic()

    def leave(self) -> None:
        """Record that the innermost forward has ended."""
        if self._roots:
            if self._member_depth == len(self._stack):
                self._end_member()
            self._roots.pop()
            self._stack.pop()

    def _end_member(self) -> None:
        """Count the call of the outermost member of a list."""
        context = current_context()
        if context is not None:
            name, members = self._names[self._roots[0]].lists[id(self._roots[-1])]
            context.operators.end_member(name, members, time.monotonic() - self._member_s)
        self._member_depth = None

    def here(self) -> str:
        """Return the name of the running module; in backward, that of the module that created the node; "" if none."""
        if self.call is not None:
            return self.call.module
        node = torch._C._current_autograd_node()  # noqa: SLF001 - as PyTorch's own profiler does
        if node is not None:
            return self._by_node.get(node._sequence_nr(), "")  # noqa: SLF001
        name = self._stack[-1] if self._stack else ""
        if name:
            if len(self._by_node) > MOST_NOTED:
                self._by_node.clear()
            self._by_node[torch.autograd._get_sequence_nr() - 1] = name  # noqa: SLF001
        return name


_PLACES = ContextVar("module_places", default=ModulePlaces())  # noqa: B039 - a rank sets its own


def track_modules_of_rank() -> None:
    """Track the modules of this rank apart from those of the program and of other ranks."""
    _PLACES.set(ModulePlaces())


def current_module() -> str:
    """Return the dotted name of the module that calls an operator; "" outside of all modules."""
    return _PLACES.get().here()


def enter_module(module: Module, args: object) -> None:  # noqa: ARG001 - as PyTorch calls it
    """Record that the forward of a module begins."""
    if not _is_wrapper(module):
        _PLACES.get().enter(module)


def leave_module(module: Module, args: object, output: object) -> None:  # noqa: ARG001 - as PyTorch calls it
    """Record that the forward of a module has ended."""
    if not _is_wrapper(module):
        _PLACES.get().leave()


def _is_wrapper(module: Module) -> bool:
    """Return whether a module is the result of ``torch.compile``: it calls the module of the program."""
    return _WRAPPED in module._modules  # noqa: SLF001 - its only attribute without a lookup of all modules


def follow_modules() -> None:
    """Start to track modules."""
    register_module_forward_pre_hook(enter_module)
    register_module_forward_hook(leave_module, always_call=True)


def traced_call() -> TracedCall | None:
    """Return the call of the program that a compiled graph carries out; None outside of such graphs."""
    return _PLACES.get().call


def set_traced_call(module: str, operators: str, place: ProgramPlace | None, covers: Iterable[str] = ()) -> None:
    """Set the call that a compiled graph carries out from here on; modules are relative to the graph's module.

    ``place``: the line of the program; None if it calls the graph's module from outside.
    """
    places = _PLACES.get()
    name, *inner = [".".join(filter(None, (places.graph_module, path))) for path in (module, *covers)]
    places.call = TracedCall(name, operators, place or places.graph_place, tuple(inner))


@contextmanager
def traced_graph(place: ProgramPlace | None) -> Iterator[None]:
    """Run a compiled graph inside the ``with`` block, in the running module. ``place``: the line that calls it."""
    places = _PLACES.get()
    before = places.graph_module, places.graph_place, places.call
    places.graph_module, places.graph_place = places.here(), place
    try:
        yield
    finally:
        places.graph_module, places.graph_place, places.call = before


def is_made_by_module() -> bool:
    """Return whether a module is being created: its constructor, or a function of ``torch.nn.init``, is running."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None:
        code = frame.f_code
        if code.co_filename == torch.nn.init.__file__:
            return True
        is_constructor = code.co_name == "__init__" and code.co_argcount
        if is_constructor and isinstance(frame.f_locals.get(code.co_varnames[0]), Module):
            return True
        frame = frame.f_back
    return False


def is_library(file: str) -> bool:
    """Return whether a source file belongs to PyTorch or to this package, or is no file."""
    return file.startswith(_LIBRARIES) or file.startswith("<")


def program_place() -> ProgramPlace | None:
    """Return the place of the program's call into PyTorch; None if the call is not in a file."""
    call = traced_call()
    if call is not None:
        return call.place
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return ProgramPlace(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None


@lru_cache(maxsize=4096)
def call_from(place: ProgramPlace) -> Callable[..., None]:
    """Return a function that calls ``program(*addresses, tl=tl)`` from a line of the program.

    The line is then on the call stack of every command of the kernel, so reports of the launch show it.
    """
    source = "\n" * (place.line - 1) + "lambda program, addresses, tl: program(*addresses, tl=tl)"
    call: Callable[..., None] = eval(compile(source, place.file, "eval"))
    return call
