"""Closed forms of collectives beside the simulator, on machines whose links are slower and faster."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from algorithm_support import algorithm, all_reduce, longest_kernel_ns, over_sips, shards_of
from closed_forms import AlgorithmBounds, AlgorithmForms

from compiled import SPREAD, compiled
from covering import covering, sample, slow
from kernbench.engine.engine import GraphEngine
from kernbench.evaluation.ccl_ways import QueueFigures
from kernbench.topology.builder import Topology
from kernbench.topology.grid import Grid

KIB = 1024
BANKS = (
    "cube.hbm.timing=hbm3",
    "cube.hbm.access_bytes=null",
    "cube.components.hbm_ctrl.attrs={access_ns: 2.5}",
)
GRIDS = {2: Grid(2, 1), 4: Grid(2, 2), 6: Grid(3, 2), 8: Grid(4, 2), 16: Grid(4, 4)}


def _links(latency: float = 1.0, bandwidth: float = 1.0) -> tuple[str, ...]:
    """Links whose latency and bandwidth are so many times those of the default machine."""
    return (
        f"sip.components.sip_port.attrs.overhead_ns={20 * latency}",
        f"cube.components.ucie.attrs.overhead_ns={8 * latency}",
        f"sip.components.ucie.attrs.overhead_ns={8 * latency}",
        f"system.links.sip_to_sip.bw_gbs={128 * bandwidth}",
        f"sip.links.cube_to_cube.bw_gbs={256 * bandwidth}",
        f"sip.links.io_to_cube.bw_gbs={256 * bandwidth}",
    )


def _machine(sips: int, kind: str, *changes: str) -> Topology:
    sizes = ["sip.cube_mesh.w=2", "sip.cube_mesh.h=2", f"system.sips.count={sips}", f"system.sips.topology={kind}"]
    if kind in ("torus_2d", "mesh_2d_no_wrap"):
        sizes += [f"system.sips.w={GRIDS[sips].w}", f"system.sips.h={GRIDS[sips].h}"]
    return compiled(*sizes, *changes)


def _simulated(name: str, neighbours: str, machine: Topology, ranks: int, nbytes: int) -> float:
    if name == "sip_allreduce":
        shards = shards_of(ranks, {(0, 0): nbytes // 4}, np.random.default_rng(0))
        return longest_kernel_ns(over_sips(name, machine, [shards]))
    grid = {"kernel_w": GRIDS[ranks].w, "kernel_h": GRIDS[ranks].h} if name == "mesh_allreduce" else {}
    chosen = algorithm(name, neighbours, ranks, **grid)
    return longest_kernel_ns(all_reduce(chosen, machine, lambda _pe: np.zeros(nbytes // 4, np.float32)))


def _form(name: str, machine: Topology, ranks: int, nbytes: int) -> float:
    forms = AlgorithmForms(GraphEngine(machine).machine, QueueFigures())
    are_sips = ranks == machine.spec.num_sips
    pes = [(rank, 0, 0) if are_sips else (0, *divmod(rank, 8)) for rank in range(ranks)]
    return {
        "ring_allreduce": lambda: forms.ring_ns(pes, nbytes),
        "ring_allreduce_rs_ag": lambda: forms.rs_ag_ns(pes, nbytes),
        "tree_allreduce": lambda: forms.tree_ns(pes, nbytes),
        "mesh_allreduce": lambda: forms.mesh_ns(pes, GRIDS[ranks], nbytes),
        "sip_allreduce": lambda: forms.sip_ns([(0, 0)], nbytes),
    }[name]()


RINGS_AND_TREES = {"ring_allreduce": "ring_1d", "ring_allreduce_rs_ag": "ring_1d", "tree_allreduce": "tree_binary"}
CASES = [
    *(
        (name, kind, sips, "ring_1d", ranks)
        for name, kind in RINGS_AND_TREES.items()
        for sips, ranks in ((6, 6), (2, 7))
    ),
    ("mesh_allreduce", "torus_2d", 4, "torus_2d", 4),
    *(("sip_allreduce", "none", sips, kind, sips) for sips, kind in ((2, "ring_1d"), (4, "torus_2d"))),
]
GRID_CASES = [
    ("sip_allreduce", "none", sips, kind, sips)
    for sips, kind in ((4, "mesh_2d_no_wrap"), (6, "mesh_2d_no_wrap"), (6, "torus_2d"))
]
MORE_CASES = [
    *(
        (name, kind, sips, "ring_1d", ranks)
        for name, kind in RINGS_AND_TREES.items()
        for sips, ranks in ((2, 2), (2, 4))
    ),
    *((name, kind, 2, "ring_1d", 16) for name, kind in RINGS_AND_TREES.items()),
    *(
        ("mesh_allreduce", "torus_2d", sips, "torus_2d" if sips > 2 else "ring_1d", n)
        for sips, n in ((6, 6), (2, 8), (2, 16))
    ),
    *(("sip_allreduce", "none", sips, "ring_1d", sips) for sips in (4, 6)),
    *GRID_CASES,
]
LINKS = {"default": (), "both x2": _links(2, 2)}
MORE = {
    f"latency x{latency}, bandwidth x{bandwidth}": _links(latency, bandwidth)
    for latency in (1, 2, 4)
    for bandwidth in (0.5, 1, 2)
}


def _check(name: str, neighbours: str, sips: int, kind: str, ranks: int, nbytes: int, changes: tuple[str, ...]) -> None:
    machine = _machine(sips, kind, *changes, SPREAD)
    simulated = _simulated(name, neighbours, machine, ranks, nbytes)
    assert simulated == pytest.approx(_form(name, machine, ranks, nbytes), rel=0.15)


@pytest.mark.parametrize(
    ("case", "links"), [*covering(CASES[1::2], LINKS), *(slow(case, links) for case in CASES[::2] for links in LINKS)]
)
def test_a_small_collective_is_as_long_as_its_form(case, links):
    _check(*case, KIB, LINKS[links])


@pytest.mark.parametrize("case", sample(CASES, *CASES[::2]))
def test_with_banks(case):
    _check(*case, 16 * KIB, BANKS)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [(), BANKS], ids=["ideal", "banks"])
@pytest.mark.parametrize("nbytes", [KIB, 64 * KIB])
@pytest.mark.parametrize("links", MORE)
@pytest.mark.parametrize(("name", "neighbours", "sips", "kind", "ranks"), [*CASES, *MORE_CASES])
def test_collectives_are_as_long_as_their_forms(name, neighbours, sips, kind, ranks, links, nbytes, memory):
    _check(name, neighbours, sips, kind, ranks, nbytes, (*MORE[links], *memory))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "neighbours", "sips", "kind", "ranks"),
    [*CASES, *GRID_CASES, *(("tree_allreduce", "tree_binary", 2, "ring_1d", ranks) for ranks in (2, 4))],
)
def test_a_large_collective_is_as_long_as_its_form(name, neighbours, sips, kind, ranks):
    _check(name, neighbours, sips, kind, ranks, 1024 * KIB, ())


MACHINES = ((), _links(2, 2), _links(4, 0.5), BANKS)


@pytest.mark.parametrize(
    ("name", "nbytes", "changes"),
    covering(("broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"), (KIB, 64 * KIB), MACHINES),
)
def test_bounds_over_sips_are_never_undercut(name, nbytes, changes):
    machine, rng = _machine(4, "ring_1d", *changes), np.random.default_rng(0)
    n, owned = 4, {(0, 0): nbytes // 4}
    tensors = [shards_of(n, owned, rng)]
    root = {"root": 0} if name in ("broadcast", "reduce") else {}
    if not root:
        tensors = [
            shards_of(n, owned, rng, blocks=1 if name == "all_gather" else n),
            shards_of(n, owned, rng, blocks=1 if name == "reduce_scatter" else n),
        ]
    simulated = longest_kernel_ns(over_sips(name, machine, tensors, **root))
    bounds = AlgorithmBounds(GraphEngine(machine).machine, QueueFigures())
    forms = {
        "broadcast": bounds.broadcast_ns,
        "reduce": bounds.reduce_ns,
        "all_gather": bounds.all_gather_ns,
        "reduce_scatter": bounds.reduce_scatter_ns,
        "all_to_all": bounds.all_to_all_ns,
    }
    assert 0.1 * simulated < forms[name](nbytes) <= simulated


@pytest.mark.parametrize(
    "case",
    sample(
        product(("hierarchical_allreduce", "intercube_allreduce"), (KIB, 16 * KIB), MACHINES),
        ("hierarchical_allreduce", KIB, _links(4, 0.5)),
        ("intercube_allreduce", 16 * KIB, BANKS),
    ),
)
def test_bounds_over_cubes_are_never_undercut(case):
    name, nbytes, changes = case
    machine = _machine(2, "ring_1d", *changes)
    over = {
        "hierarchical_allreduce": ("hierarchical_3level", "all_pes"),
        "intercube_allreduce": ("intercube", "pe0_of_every_cube"),
    }
    chosen = algorithm(name, over[name][0], 2, over[name][1])
    simulated = longest_kernel_ns(all_reduce(chosen, machine, lambda _pe: np.zeros(nbytes // 4, np.float32)))
    bounds = AlgorithmBounds(GraphEngine(machine).machine, QueueFigures())
    is_over_pes = name == "hierarchical_allreduce"
    bound = bounds.hierarchical_ns(nbytes) if is_over_pes else bounds.intercube_bound_ns(nbytes, 3)
    assert 0.1 * simulated < bound <= simulated
