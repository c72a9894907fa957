"""The benches that have names: entered by decorator, found by name.

    @bench("gemm-single-pe", "one GEMM on one PE", params=GemmParams)
    def run(torch): ...

Packages announce theirs with an entry point in the group ``kernbench.benches``: a module that registers them when
imported. The benches of this package are found the same way, so nothing here imports upward.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias

from pydantic import ValidationError

from kernbench.common.complaints import close_to
from kernbench.common.config import ConfigModel, Document, apply_overrides, check, report
from kernbench.common.errors import BenchError, UnknownNameError
from kernbench.common.exits import exit_is_failure
from kernbench.runtime_api.context import NoParams

__all__ = ["REGISTRY", "Bench", "BenchRegistry", "NoParams", "bench", "known_benches", "lookup_bench"]

ENTRY_POINT_GROUP = "kernbench.benches"
PARAMS_PATH = ("bench",)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# A bench takes the RuntimeContext, whose ``params`` are of the bench's own type.
Run: TypeAlias = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A host program with a name. Callable as the function it is.

    ``evaluation``: it builds engines of its own, so it need not submit anything to the one it is given.
    """

    name: str
    description: str
    function: Run
    params: type[ConfigModel] = NoParams
    evaluation: bool = False
    file: str = ""

    def __call__(self, torch: Any) -> object:
        """Run it on a RuntimeContext."""
        return self.function(torch)

    def make_params(self, overrides: Iterable[str] = ()) -> ConfigModel:
        """Its parameters, changed by texts such as ``bench.m=512``. ConfigError with everything wrong with them."""
        document = apply_overrides(Document(f"bench {self.name}", {PARAMS_PATH[0]: {}}, {}), overrides)
        checked = check(document, self.params, at=PARAMS_PATH)
        report(document, checked.complaints)
        assert checked.value is not None, "parameters without complaints have a value"
        return checked.value


class BenchRegistry:
    """Benches by name; ``-`` and ``_`` are the same in a name. ``group``: entry points to load at the first look-up."""

    def __init__(self, group: str | None = None) -> None:
        self._benches: dict[str, Bench] = {}
        self._pending_group = group

    def bench(
        self, name: str, description: str, *, params: type[ConfigModel] = NoParams, evaluation: bool = False
    ) -> Callable[[Run], Bench]:
        """Decorate a function ``run(torch)`` to make it known; every parameter needs a default.

        BenchError, which names the file, for a name that is taken or not kebab-case, a description that is not one
        line, and parameters that do not stand by themselves.
        """

        def enter(function: Run) -> Bench:
            made = Bench(
                name=name,
                description=description,
                function=function,
                params=params,
                evaluation=evaluation,
                file=file_of(function),
            )
            self._enter(made)
            return made

        return enter

    def lookup(self, name: str) -> Bench:
        """The bench called ``name``; UnknownNameError, which lists them, when there is none."""
        self._load_group()
        found = self._benches.get(_canonical(name))
        if found is None:
            hint = f"{close_to(_canonical(name), self._benches)}a file of yours is named path/to/file.py[:function]"
            raise UnknownNameError("bench", name, tuple(sorted(self._benches)), hint)
        return found

    def known(self) -> tuple[Bench, ...]:
        """All benches, by name."""
        self._load_group()
        return tuple(self._benches[name] for name in sorted(self._benches))

    def forget_file(self, file: str) -> None:
        """Take out what a file registered, so that it can be loaded again."""
        self._benches = {name: each for name, each in self._benches.items() if each.file != file}

    def _enter(self, made: Bench) -> None:
        _check_bench(made)
        taken = self._benches.get(made.name)
        if taken is not None:
            raise BenchError(f"{made.file}: a bench {made.name!r} exists already, in {taken.file}")
        self._benches[made.name] = made

    def _load_group(self) -> None:
        group, self._pending_group = self._pending_group, None
        if group is not None:
            for point in sorted(importlib.metadata.entry_points(group=group), key=lambda each: each.name):
                _load_point(point)


def file_of(function: Run) -> str:
    """The file that a function was written in; of a callable object, its class's module."""
    return function.__code__.co_filename if isinstance(function, FunctionType) else type(function).__module__


def _load_point(point: importlib.metadata.EntryPoint) -> None:
    try:
        with exit_is_failure():
            point.load()
    except BenchError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise BenchError(f"entry point {point.name} = {point.value!r} of {point.group} failed: {what}") from error


def _canonical(name: str) -> str:
    return name.replace("_", "-")


def _check_bench(made: Bench) -> None:
    if not _NAME.fullmatch(made.name):
        raise BenchError(f"{made.file}: {made.name!r} is no name for a bench; write kebab-case, like 'gemm-single-pe'")
    if not made.description.strip() or "\n" in made.description:
        raise BenchError(f"{made.file}: bench {made.name!r} needs a description of one line")
    try:
        made.params()
    except ValidationError as error:
        names = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
        raise BenchError(f"{made.file}: bench {made.name!r}: parameters without a valid default: {names}") from error


REGISTRY = BenchRegistry(ENTRY_POINT_GROUP)
bench = REGISTRY.bench
lookup_bench = REGISTRY.lookup
known_benches = REGISTRY.known
