"""A sweep that is ready to run: the machine and the bench it starts from, and every point of the grid."""

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
from kernbench.evaluation.sweep_measure import flat_configuration
from kernbench.evaluation.sweep_spec import AxisValue, SweepSpec
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.overrides import OverrideTexts, split_overrides
from kernbench.topology.builder import Topology

CCL = "ccl"
"""The part of an identity that says how collectives are configured."""
Choice = tuple[str, AxisValue]


@value
class Point:
    """A point of the grid: its number, from 0, the last axis running fastest, and its value on each axis."""

    index: int
    values: tuple[Choice, ...]


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that is ready to run, with everything that it depends on: files that change meanwhile change nothing.

    ``base``: the machine's file as it was read; ``machine``: what it compiles to; ``bench_name``: what workers load,
    empty for a function, which runs in this process alone; ``data``: what each run keeps to compute values.
    """

    name: str
    spec: SweepSpec
    bench: Bench
    bench_name: str
    base: Document
    machine: Topology
    ccl: CclConfig
    data: DataPolicy

    @property
    def axes(self) -> Mapping[str, tuple[AxisValue, ...]]:
        """The values of each axis, by its path."""
        return self.spec.grid

    @property
    def n_points(self) -> int:
        """The number of points of the grid."""
        return math.prod(len(values) for values in self.axes.values())

    def points(self) -> Iterator[Point]:
        """All points, in the order of results."""
        for index, values in enumerate(product(*self.axes.values())):
            yield Point(index, tuple(zip(self.axes, values, strict=True)))

    def changes(self, point: Point) -> OverrideTexts:
        """Return what a point changes: what is fixed, then its values."""
        return split_overrides(map(as_override, (*self.spec.fixed.items(), *point.values)))

    def configuration(self) -> dict[str, Any]:
        """The resolved base machine by path."""
        return flat_configuration(self.machine.configuration)

    def identity(self) -> dict[str, Any]:
        """Everything that a row depends on: rows of equal identities may stand in one table.

        ``configuration`` is the resolved base machine by path, of which ``machine`` is the digest.
        """
        return {
            "kernbench": __version__,
            "bench": self.bench.name,
            "bench file": _digest_of_file(self.bench.file),
            "device": self.spec.device,
            "verify": self.spec.verify,
            "data": "kept" if self.data.keep else "zeros" if self.data.zeros else "none",
            "explain": self.spec.explain,
            "machine": self.machine.digest,
            CCL: _settings(self.ccl),
            "set": dict(self.spec.fixed),
            "grid": {path: list(values) for path, values in self.axes.items()},
            "configuration": self.configuration(),
        }


def _settings(ccl: CclConfig) -> dict[str, Any]:
    """Read a ``ccl.yaml``, wherever it lies: the default algorithm, and by name the settings of each."""
    elsewhere = {"name", "passthrough", "folder", "place", "passed_at"}
    algorithms = {each.name: to_jsonable_python(each, exclude=elsewhere) for each in ccl.algorithms}
    for each in ccl.algorithms:
        algorithms[each.name] |= to_jsonable_python(dict(each.passthrough))
    return {"algorithm": ccl.default_algorithm, "algorithms": algorithms}


def as_override(choice: Choice) -> str:
    """``path=value``, as ``--set`` takes it."""
    path, value = choice
    return f"{path}={json.dumps(value)}"


def _digest_of_file(file: str) -> str:
    """Of the file of a bench; empty for one that is in none."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
