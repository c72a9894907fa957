"""A sweep that is ready to run: the base machine, the bench, and every point of the grid."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from kernbench.ccl.config import CclConfig
from kernbench.common import __version__
from kernbench.common.config import Document
from kernbench.common.data_policy import DataPolicy
from kernbench.common.values import value
from kernbench.evaluation.sweep_columns import SECTION, DerivedColumns
from kernbench.evaluation.sweep_expressions import parse_expression
from kernbench.evaluation.sweep_measure import flat_configuration
from kernbench.evaluation.sweep_spec import MACHINE, AxisValue, SweepSpec
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.overrides import OverrideTexts, split_overrides
from kernbench.runtime_api.run_request import RunRequest
from kernbench.topology.builder import Topology

CCL = "ccl"
"""The section of an identity with the configuration of collectives"""
MACHINES = "machines"
"""The section of an identity with the resolved machines of the axis ``machine``, by name and path"""
WORK = "work"
"""The section of a table's metadata with the axes of work"""
AxisChoice = tuple[str, AxisValue]
BASE = ""
"""The name of the base machine of a sweep without the axis ``machine``"""


@value
class BaseMachine:
    """A base machine: its file as read, and the compiled machine."""

    document: Document
    topology: Topology

    @property
    def configuration(self) -> dict[str, Any]:
        """The resolved machine by path."""
        return flat_configuration(self.topology.configuration)


@value
class Point:
    """A point of the grid: its number from 0, with the last axis varying fastest, and its value on each axis."""

    index: int
    values: tuple[AxisChoice, ...]


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that is ready to run, with all its inputs. Later changes of files have no effect.

    ``request``: the request of each point without its changes; it names no program for a function, which runs in this
    process only. ``machines``: the base machines by name: ``BASE``, or the values of the axis ``machine``. ``data``:
    the recorded values of each run.
    """

    name: str
    spec: SweepSpec
    bench: Bench
    request: RunRequest
    machines: Mapping[str, BaseMachine]
    ccl: CclConfig
    data: DataPolicy

    @property
    def machine(self) -> Topology:
        """The base machine, the first one of the axis ``machine``."""
        return next(iter(self.machines.values())).topology

    @property
    def source(self) -> str:
        """The file of the base machine, or the names of all machines of the axis ``machine``."""
        return ", ".join(self.machines) if MACHINE in self.spec.grid else self.machine.source

    @property
    def digest(self) -> str:
        """The digest of the base machine, or of all machines of the axis ``machine``."""
        if MACHINE not in self.spec.grid:
            return self.machine.digest
        digests = {name: machine.topology.digest for name, machine in self.machines.items()}
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    @property
    def axes(self) -> Mapping[str, tuple[AxisValue, ...]]:
        """The values of each axis by path."""
        return self.spec.grid

    @property
    def n_points(self) -> int:
        """The number of points of the grid."""
        return math.prod(len(values) for values in self.axes.values())

    def points(self) -> Iterator[Point]:
        """Yield all points in the order of results."""
        for index, values in enumerate(product(*self.axes.values())):
            yield Point(index, tuple(zip(self.axes, values, strict=True)))

    def changes(self, point: Point) -> OverrideTexts:
        """Return the changes of a point: fixed values, then its axis values."""
        changes = (choice for choice in point.values if choice[0] != MACHINE)
        return split_overrides(map(as_override, (*self.spec.fixed.items(), *changes)))

    def base_name(self, point: Point) -> str:
        """Return the name of the base machine of a point. Fixed values and the other axes change this machine."""
        return str(dict(point.values).get(MACHINE, BASE))

    def derived_columns(self) -> DerivedColumns:
        """Return the derived columns, ready to be computed."""
        expressions = {name: parse_expression(text) for name, text in self.spec.columns.items()}
        return DerivedColumns(expressions, self.spec.fixed)

    def about(self) -> dict[str, Any]:
        """Return the identity of the sweep, with the derived columns and the axes of work if there are any.

        These two do not change what runs, so a journal does not depend on them.
        """
        entries = {SECTION: dict(self.spec.columns), WORK: list(self.spec.work)}
        return self.identity() | {key: content for key, content in entries.items() if content}

    def identity(self) -> dict[str, Any]:
        """Return the inputs of all runs. Rows of equal identities are comparable and may share a table.

        ``configuration`` is the resolved base machine by path, ``machine`` the digest of all base machines.
        ``machines`` are the machines of the axis ``machine``, if it exists.
        """
        program, reuse = self.request.program, self.request.reuse
        script = {"args": list(program.args), "as_cuda": program.as_cuda}
        script |= {} if program.ranks is None else {"ranks": program.ranks}
        configurations = {name: machine.configuration for name, machine in self.machines.items()}
        return {
            "kernbench": __version__,
            "bench": self.bench.name,
            "bench file": _digest_of_file(self.bench.file),
            **({} if program.script is None else {"script": script}),
            "device": self.spec.device,
            "verify": self.spec.verify,
            "data": "kept" if self.data.keep else "zeros" if self.data.zeros else "none",
            "explain": self.spec.explain,
            **({"reuse": to_jsonable_python(reuse)} if reuse.reuse else {}),
            "machine": self.digest,
            CCL: _settings(self.ccl),
            "set": dict(self.spec.fixed),
            "grid": {path: list(values) for path, values in self.axes.items()},
            "configuration": next(iter(configurations.values())),
            **({MACHINES: configurations} if MACHINE in self.axes else {}),
        }


def _settings(ccl: CclConfig) -> dict[str, Any]:
    """Return the content of a ``ccl.yaml`` without its path: the default algorithm and all settings."""
    elsewhere = {"name", "passthrough", "folder", "place", "passed_at"}
    algorithms = {config.name: to_jsonable_python(config, exclude=elsewhere) for config in ccl.algorithms}
    for config in ccl.algorithms:
        algorithms[config.name] |= to_jsonable_python(dict(config.passthrough))
    return {"algorithm": ccl.default_algorithm, "algorithms": algorithms}


def as_override(choice: AxisChoice) -> str:
    """Return ``path=value``, as for ``--set``."""
    path, value = choice
    return f"{path}={json.dumps(value)}"


def _digest_of_file(file: str) -> str:
    """Return the digest of a bench's file; empty for a bench without a file."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
