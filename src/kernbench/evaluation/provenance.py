"""Where results come from: what made them, of what machine, with which parameters, where and when."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernbench import __version__
from kernbench.evaluation.outputs import write_json, write_text
from kernbench.topology.builder import Topology

PROVENANCE_FILE = "provenance.json"
CONFIGURATION_FILE = "topology.resolved.yaml"
# Their versions may change numbers (phase 2) or figures.
_LIBRARIES = ("numpy", "ml_dtypes", "simpy", "matplotlib", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computer:
    """The computer that made results; no simulated time depends on it."""

    system: str = field(default_factory=platform.platform)
    processor: str = field(default_factory=platform.machine)
    cpus: int = field(default_factory=lambda: os.cpu_count() or 0)
    python: str = field(default_factory=platform.python_version)
    libraries: Mapping[str, str] = field(default_factory=lambda: {name: version(name) for name in _LIBRARIES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where results come from. ``topology_hash``: of the resolved configuration, see ``Topology.digest``.

    ``date``: UTC, ISO 8601. ``machine``: the computer, not the simulated one.
    """

    made_by: str
    topology: str
    topology_hash: str
    parameters: Mapping[str, Any]
    kernbench_version: str = __version__
    machine: Computer = field(default_factory=Computer)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def provenance_of(topology: Topology, made_by: str, parameters: Mapping[str, Any]) -> Provenance:
    """The provenance of something made here and now; ``made_by``: a bench or a command."""
    return Provenance(
        made_by=made_by, topology=topology.source, topology_hash=topology.digest, parameters=dict(parameters)
    )


def write_provenance(folder: Path, provenance: Provenance, topology: Topology) -> None:
    """Write ``provenance.json``, and beside it the machine in full, as ``--topology`` takes it."""
    write_json(folder / PROVENANCE_FILE, asdict(provenance))
    head = f"# kernbench {provenance.kernbench_version}: the machine of {provenance.made_by}, {provenance.date}\n"
    write_text(folder / CONFIGURATION_FILE, head + topology.resolved_yaml())
