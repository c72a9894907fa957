"""The parts of a process that each rank in a thread has of its own: environment, arguments, generators, modules.

The ranks share one process. Before another rank runs, the scheduler stores these parts for the rank that has run, and
restores those of the next rank.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from kernbench.common.values import state, value

MAIN = "__main__"
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@value
class GeneratorState:
    """A generator of random numbers of the process: functions that return its state and restore one.

    ``first``: the state with which each rank begins; None: that of the program.
    """

    get: Callable[[], Any]
    put: Callable[[Any], object]
    equal: Callable[[Any, Any], bool]
    first: Any = None


PYTHON = GeneratorState(random.getstate, random.setstate, lambda a, b: a == b)
"""The default generator of ``random``."""


@value(kw_only=True)
class RankProcess:
    """The parts of a process that ranks have of their own.

    ``around``: entered in the thread of each rank. ``variables``: returns the environment variables that a rank has
    besides those of the program. ``generators``: the default generators. ``folder``: the folder of the program; each
    rank imports its modules anew. None: the ranks share them with the program.
    """

    around: Callable[[], AbstractContextManager[object]] = nullcontext
    variables: Callable[[int], Mapping[str, str]] = lambda _: _NO_VARIABLES
    generators: Sequence[GeneratorState] = (PYTHON,)
    folder: Path | None = None


@state
class _ProcessState:
    """The stored parts of a rank, or of the program."""

    environment: dict[str, str]
    argv: list[str]
    path: list[str]
    show_error: Callable[..., Any]
    generators: list[Any]
    modules: dict[str, ModuleType] = field(default_factory=dict)


class ProcessStates:
    """The parts of each rank and of the program. One of them, the owner, has the process; it begins as the program."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self._owner: int | None = None
        self._states: dict[int | None, _ProcessState] = {}
        self._n_modules = 0
        self._own_names: set[str] = set()

    def hand_over(self, rank: int | None) -> None:
        """Give the process to a rank; None: to the program."""
        if rank == self._owner:
            return
        present = self._states[self._owner] = self._store()
        following = self._states.get(rank) or self._begin(rank)
        self._restore(following, present)
        self._owner = rank

    def _store(self) -> _ProcessState:
        return _ProcessState(
            environment=dict(os.environ),
            argv=sys.argv,
            path=sys.path,
            show_error=sys.excepthook,
            generators=[generator.get() for generator in self._process.generators],
            modules=self._own_modules(),
        )

    def _begin(self, rank: int | None) -> _ProcessState:
        """Return the parts with which a rank begins: those of the program, with its own variables and modules."""
        assert rank is not None, "the program had the process first"
        program, generators = self._states[None], self._process.generators
        firsts = [
            stored if generator.first is None else generator.first
            for generator, stored in zip(generators, program.generators, strict=True)
        ]
        return _ProcessState(
            environment={**program.environment, **self._process.variables(rank)},
            argv=list(program.argv),
            path=list(program.path),
            show_error=program.show_error,
            generators=firsts,
            modules={MAIN: program.modules[MAIN]},
        )

    def _restore(self, following: _ProcessState, present: _ProcessState) -> None:
        for name in present.environment.keys() - following.environment.keys():
            del os.environ[name]
        for name, text in following.environment.items():
            if present.environment.get(name) != text:
                os.environ[name] = text
        sys.argv, sys.path, sys.excepthook = following.argv, following.path, following.show_error
        states = zip(self._process.generators, following.generators, present.generators, strict=True)
        for generator, wanted, has in states:
            if not generator.equal(wanted, has):
                generator.put(wanted)
        for name in present.modules:
            del sys.modules[name]
        sys.modules.update(following.modules)
        self._n_modules = len(sys.modules)

    def _own_modules(self) -> dict[str, ModuleType]:
        """Return ``__main__`` and the modules of the program's folder, if ranks have them of their own."""
        folder = self._process.folder
        if folder is not None and len(sys.modules) != self._n_modules:
            self._own_names |= {name for name, module in list(sys.modules.items()) if _is_in(folder, module)}
        return {name: sys.modules[name] for name in (MAIN, *self._own_names) if name in sys.modules}


def _is_in(folder: Path, module: ModuleType) -> bool:
    """Return whether a module is a file of a folder, outside of installed packages."""
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if not isinstance(file, str) or not file.startswith(f"{folder}{os.sep}"):
        return False
    return "site-packages" not in Path(file).parts
