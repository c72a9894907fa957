"""Queues along the machine itself: between neighbouring cubes, and between neighbouring SIPs on every cube."""

from __future__ import annotations

from kernbench.ccl.config import AlgorithmConfig, CclConfig, resolve_algorithm_config
from kernbench.ccl.install import IpcqPlan, plan_of
from kernbench.ccl.mappers import pe0_of_every_cube, rank_pes
from kernbench.ccl.plan import RankLayout
from kernbench.ccl.queues import install_edges, settings_of
from kernbench.ccl.topologies import intercube_edges
from kernbench.common.errors import InputError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.spec import TopologySpec


def configure_sfr_intercube_multisip(
    engine: GraphEngine, spec: TopologySpec, cfg: AlgorithmConfig | CclConfig
) -> IpcqPlan:
    """Install on PE 0 of every cube E, W, N, S to the neighbouring cubes and ``global_X`` to the same cube of the next
    SIPs, and wait until that is done.

    ``spec``: that of the engine's machine. ``cfg``: an algorithm's configuration, of which the queue settings count,
    or a file's, of which the default algorithm's do. Ranks are SIPs. IpcqError and AllocationError as
    ``prepare_queues``; InputError for the spec of another machine.
    """
    if spec != engine.spec:
        raise InputError("configure_sfr_intercube_multisip: spec is not that of the engine's machine; pass engine.spec")
    config = resolve_algorithm_config(cfg) if isinstance(cfg, CclConfig) else cfg
    queues = install_edges(engine, intercube_edges(spec), settings_of(config))
    layout = RankLayout(rank_pes(spec, spec.num_sips, pe0_of_every_cube), ranks_are_sips=True)
    return plan_of(config, layout, queues)
