"""Queues along the machine itself: between neighbouring cubes, and between neighbouring SIPs on every cube."""

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
# What of a machine the edges follow from.
_DECISIVE = {("system", "sips"): ("count", "topology", "w", "h"), ("sip", "cube_mesh"): ("w", "h")}


def configure_sfr_intercube_multisip(
    engine: GraphEngine,
    spec: TopologySpec | Topology | Mapping[str, Any] | None = None,
    cfg: CclLike = None,
) -> IpcqPlan:
    """Install on PE 0 of every cube E, W, N, S to the neighbouring cubes and ``global_X`` to the same cube of the next
    SIPs, and wait until that is done.

    ``spec``: that of the engine's machine, typed or as nested mappings; it is checked, and may be left out. ``cfg``: an
    algorithm's configuration, of which the queue settings count, typed or as the mapping that ``ccl.yaml`` has, with
    its ``defaults`` or without; or a file or what was loaded from one, of which the default algorithm's do. The ranks
    of the plan are PE 0 of all cubes, by SIP, then cube. IpcqError and AllocationError as ``prepare_queues``;
    InputError for the spec of another machine.
    """
    machine = engine.spec
    if spec is not None and not _is_of(spec, machine):
        raise InputError("configure_sfr_intercube_multisip: spec is not that of the engine's machine; pass engine.spec")
    config = as_ccl_config(cfg, {"algorithm": ALGORITHM, "module": ALGORITHM, "topology": "intercube"}).algorithm()
    queues = install_edges(engine, intercube_edges(machine), config)
    ranks = tuple(((sip, cube, 0),) for sip in range(machine.num_sips) for cube in range(machine.cubes_per_sip))
    return plan_of(config, RankLayout(ranks, ranks_are_sips=False), queues)


def _is_of(spec: TopologySpec | Topology | Mapping[str, Any], machine: TopologySpec) -> bool:
    """Return True when ``spec`` describes ``machine``; in a mapping only the keys that decide queues are compared."""
    if isinstance(spec, Mapping):
        own = machine.with_sip_grid.as_mapping()
        found = ((path, key, _entry(spec, (*path, key))) for path, keys in _DECISIVE.items() for key in keys)
        return all(value in (None, _entry(own, (*path, key))) for path, key, value in found)
    return (spec.spec if isinstance(spec, Topology) else spec) == machine


def _entry(spec: object, path: Sequence[str]) -> object:
    """Return the entry at a path of nested mappings; None when there is none."""
    for part in path:
        spec = spec.get(part) if isinstance(spec, Mapping) else None
    return current_topology_name(spec)
