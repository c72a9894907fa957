"""Queues of a configured algorithm on a machine, for kernels that are launched by hand."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from kernbench.ccl.ccl_yaml import load_ccl_config
from kernbench.ccl.config import AlgorithmConfig, CclConfig, QueueSettings, resolve_algorithm_config
from kernbench.ccl.counts import checked_count
from kernbench.ccl.loading import Algorithm, load_algorithm
from kernbench.ccl.mappers import RankPes
from kernbench.ccl.plan import NeighborTable, PlacedPe, RankLayout, edges_of, layout_of
from kernbench.ccl.queues import InstalledQueues, install_edges, prepare_queues, release, uninstall, warn_of_lost
from kernbench.engine.engine import GraphEngine
from kernbench.messages.queues import BufferKind

__all__ = [
    "AlgorithmConfig",
    "InstalledQueues",
    "IpcqPlan",
    "QueueSettings",
    "configured",
    "install_edges",
    "install_ipcq",
    "load_ccl_config",
    "plan_of",
    "prepare_queues",
    "release",
    "resolve_algorithm_config",
    "uninstall",
    "warn_of_lost",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcqPlan:
    """What has been installed.

    ``rank_to_pe``: the leading (sip, cube, pe) of each rank; ``rank_pes``: all PEs of each. ``neighbor_table``:
    rank -> direction -> rank. Entries of the first and of the last have ``sip``, ``cube`` and ``pe``.
    ``uninstall(engine, plan.queues)`` takes it off.
    """

    config: AlgorithmConfig
    world_size: int
    rank_to_pe: tuple[PlacedPe, ...]
    rank_pes: RankPes = field(repr=False)
    neighbor_table: NeighborTable = field(repr=False, hash=False)
    buffer_kind: BufferKind
    queues: InstalledQueues = field(repr=False)


def install_ipcq(
    engine: GraphEngine,
    algorithm: str | None = None,
    world_size: int | None = None,
    ccl: str | os.PathLike[str] | CclConfig | None = None,
) -> IpcqPlan:
    """Install the queues of an algorithm of ``ccl`` and wait until every PE has its own.

    ``algorithm``: by name, else the default one. ``world_size``: ranks are the first so many PEs, even when there are
    as many SIPs; without it as configured, else SIPs. ``ccl``: a file or a loaded configuration, else ./ccl.yaml, else
    the packaged file. InputError for what is wrong with any of these; IpcqError and AllocationError as
    ``prepare_queues``.
    """
    chosen = configured(algorithm, world_size, ccl)
    layout = layout_of(chosen, engine.spec)
    queues = install_edges(engine, edges_of(chosen, engine.spec), chosen.config.queues)
    return plan_of(chosen.config, layout, queues)


def configured(
    algorithm: str | None = None,
    world_size: int | None = None,
    ccl: str | os.PathLike[str] | CclConfig | None = None,
) -> Algorithm:
    """The algorithm that these arguments of ``install_ipcq`` mean."""
    cfg = ccl if isinstance(ccl, CclConfig) else load_ccl_config(ccl)
    config = resolve_algorithm_config(cfg, algorithm)
    if world_size is not None:
        config = replace(config, world_size=checked_count("world_size", world_size, 1), ranks_are_pes=True)
    return load_algorithm(config)


def plan_of(config: AlgorithmConfig, layout: RankLayout, queues: InstalledQueues) -> IpcqPlan:
    """The plan of an installation."""
    return IpcqPlan(
        config=config,
        world_size=len(layout.ranks),
        rank_to_pe=layout.leaders,
        rank_pes=layout.ranks,
        neighbor_table=layout.neighbor_table(queues.edges),
        buffer_kind=queues.settings.buffer_kind,
        queues=queues,
    )
