"""Queues that follow the machine: between adjacent cubes, and between adjacent SIPs on every cube."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernbench.ccl.install import IpcqPlan, RankLayout, plan_of
from kernbench.ccl.loading import CclLike, as_ccl_config
from kernbench.ccl.queues import install_edges
from kernbench.ccl.topologies import intercube_edges
from kernbench.common.errors import InputError
from kernbench.engine.engine import GraphEngine
from kernbench.topology.builder import Topology
from kernbench.topology.spec import TopologySpec, current_topology_name

ALGORITHM = "intercube_allreduce"
# Keys of a machine that determine the edges.
_DECISIVE = {("system", "sips"): ("count", "topology", "w", "h"), ("sip", "cube_mesh"): ("w", "h")}


def configure_sfr_intercube_multisip(
    engine: GraphEngine,
    spec: TopologySpec | Topology | Mapping[str, Any] | None = None,
    cfg: CclLike = None,
) -> IpcqPlan:
    """Install queues on PE 0 of every cube and wait until all are installed.

    E, W, N, S lead to the adjacent cubes, ``global_X`` to the same cube of the adjacent SIPs. ``spec`` may repeat the
    spec of the engine's machine, typed or as nested mappings; the function only checks it. ``cfg`` has the queue
    settings: it is a typed algorithm, a mapping as in ``ccl.yaml`` with or without ``defaults``, a file or a loaded
    configuration. From a file, the settings of its default algorithm are used. The ranks of the plan are PE 0 of all
    cubes, by SIP, then cube.

    Raises IpcqError and AllocationError as ``prepare_queues``, and InputError for the spec of another machine.
    """
    machine = engine.spec
    if spec is not None and not _is_of(spec, machine):
        raise InputError("configure_sfr_intercube_multisip: spec is not that of the engine's machine; pass engine.spec")
    config = as_ccl_config(cfg, {"algorithm": ALGORITHM, "module": ALGORITHM, "topology": "intercube"}).algorithm()
    queues = install_edges(engine, intercube_edges(machine), config)
    ranks = tuple(((sip, cube, 0),) for sip in range(machine.num_sips) for cube in range(machine.cubes_per_sip))
    return plan_of(config, RankLayout(ranks, ranks_are_sips=False), queues)


def _is_of(spec: TopologySpec | Topology | Mapping[str, Any], machine: TopologySpec) -> bool:
    """Return True if ``spec`` describes ``machine``; in a mapping, only the keys that determine queues are compared."""
    if isinstance(spec, Mapping):
        machine_values = machine.with_sip_grid.as_mapping()
        entries = ((path, key, _entry(spec, (*path, key))) for path, keys in _DECISIVE.items() for key in keys)
        return all(value in (None, _entry(machine_values, (*path, key))) for path, key, value in entries)
    return (spec.spec if isinstance(spec, Topology) else spec) == machine


def _entry(spec: object, path: Sequence[str]) -> object:
    """Return the entry at a path of nested mappings, or None."""
    for key in path:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return current_topology_name(spec)
