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
from kernbench.evaluation.sweep_measure import flat_configuration
from kernbench.evaluation.sweep_spec import AxisValue, SweepSpec
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.overrides import OverrideTexts, split_overrides
from kernbench.runtime_api.run_options import RunRequest
from kernbench.topology.builder import Topology

CCL = "ccl"
"""The section of an identity with the configuration of collectives"""
Choice = tuple[str, AxisValue]


@value
class Point:
    """A point of the grid: its number from 0, with the last axis varying fastest, and its value on each axis."""

    index: int
    values: tuple[Choice, ...]


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that is ready to run, with all its inputs. Later changes of files have no effect.

    ``base``: the machine's file as read. ``machine``: the compiled base machine. ``request``: the request of each point
    without its changes; it names no program for a function, which runs in this process only. ``data``: the recorded
    values of each run.
    """

    name: str
    spec: SweepSpec
    bench: Bench
    request: RunRequest
    base: Document
    machine: Topology
    ccl: CclConfig
    data: DataPolicy

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
        return split_overrides(map(as_override, (*self.spec.fixed.items(), *point.values)))

    def configuration(self) -> dict[str, Any]:
        """The resolved base machine by path."""
        return flat_configuration(self.machine.configuration)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the sweep: all inputs. Rows of equal identities are comparable and may share a table.

        ``configuration`` is the resolved base machine by path; ``machine`` is its digest.
        """
        program = self.request.program
        script = {"args": list(program.args), "as_cuda": program.as_cuda}
        return {
            "kernbench": __version__,
            "bench": self.bench.name,
            "bench file": _digest_of_file(self.bench.file),
            **({} if program.script is None else {"script": script}),
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
    """Return the content of a ``ccl.yaml`` without its path: the default algorithm and all settings."""
    elsewhere = {"name", "passthrough", "folder", "place", "passed_at"}
    algorithms = {each.name: to_jsonable_python(each, exclude=elsewhere) for each in ccl.algorithms}
    for each in ccl.algorithms:
        algorithms[each.name] |= to_jsonable_python(dict(each.passthrough))
    return {"algorithm": ccl.default_algorithm, "algorithms": algorithms}


def as_override(choice: Choice) -> str:
    """Return ``path=value``, as for ``--set``."""
    path, value = choice
    return f"{path}={json.dumps(value)}"


def _digest_of_file(file: str) -> str:
    """Return the digest of a bench's file; empty for a bench without a file."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
