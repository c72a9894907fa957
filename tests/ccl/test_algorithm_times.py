"""How long collectives take on the machine, against their closed forms."""

from __future__ import annotations

from functools import partial

import algorithm_support
import numpy as np
import pytest
from algorithm_support import Collective, algorithm, all_reduce, longest_kernel_ns, over_sips, shards_of

from compiled import SPREAD
from covering import covering, sample, slow
from kernbench.ccl.loading import Algorithm
from kernbench.engine.hooks import QueueEvent
from kernbench.topology.builder import Topology

RANKS = 8
LINK_GBS = 256.0
MATH_GBS = 256.0
HBM_GBS = 204.8
small = partial(algorithm_support.small, changes=(SPREAD,))


def collective(nbytes: int, name: str) -> Collective:
    """An all-reduce over the PEs of a cube, timing only."""
    run = all_reduce(algorithm(name, "ring_1d", RANKS), small(), lambda pe: np.zeros(nbytes // 4, np.float32))
    run.enable_data = False
    return run


def span_ns(nbytes: int, name: str = "ring_allreduce_rs_ag") -> float:
    """From the first send to the last arrival."""
    return span_of(collective(nbytes, name))


def span_of(run: Collective) -> float:
    """From the first send to the last arrival."""
    events: list[QueueEvent] = []
    run.watch = lambda engine: engine.machine.hooks.queue.subscribe(events.append)
    run.on_machine()
    sent = min(e.time_ps for e in events if e.kind == "send")
    return (max(e.time_ps for e in events if e.kind == "arrive") - sent) / 1000


KIB = 1 << 10


def alpha_ns(name: str, steps: int) -> float:
    """The time of a step without its bytes, by an exchange of 8 bytes."""
    return span_ns(RANKS * 8 if name == "ring_allreduce_rs_ag" else 8, name) / steps


def test_a_ring_of_large_parts_runs_at_four_fifths_of_its_bandwidth() -> None:
    """S into the PE's link from its slice, and 2(n-1)/n S round the ring, at min(link, MATH), with 2(n-1) alpha."""
    nbytes, steps = 256 * KIB, 2 * (RANKS - 1)
    alpha = alpha_ns("ring_allreduce_rs_ag", steps)
    ideal = (1 + steps / RANKS) * nbytes / min(LINK_GBS, MATH_GBS) + steps * alpha
    assert 0.8 <= ideal / span_ns(nbytes) <= 1.05


def test_the_plain_ring_moves_everything_everywhere() -> None:
    """(n-1) S / min(link, MATH) + (n-1) alpha."""
    nbytes, steps = 64 * KIB, RANKS - 1
    ideal = steps * nbytes / min(LINK_GBS, MATH_GBS) + steps * alpha_ns("ring_allreduce", steps)
    assert 0.8 <= ideal / span_ns(nbytes, "ring_allreduce") <= 1


def test_small_messages_cost_their_latency_only() -> None:
    assert span_ns(RANKS * 4) < 2 * (RANKS - 1) * 20


def test_a_tensor_in_memory_is_loaded_while_messages_go_round() -> None:
    """So the kernel takes hardly more than the load, the bytes of the messages at link speed, and the store."""
    nbytes = 128 * KIB
    run = collective(nbytes, "ring_allreduce_rs_ag")
    run.on_machine()
    assert run.engine is not None
    kernel = max(run.engine.get_completion(run.handles[0])[1].pe_exec_ns.values())
    moved = 2 * nbytes / HBM_GBS
    assert moved < kernel < 1.05 * (2 * (RANKS - 1) / RANKS * nbytes / LINK_GBS + moved)


@pytest.mark.parametrize(
    ("sips", "cubes"),
    [pytest.param(1, "2x2", id="32 PEs"), pytest.param(2, "4x4", id="256 PEs", marks=pytest.mark.slow)],
)
def test_a_message_of_a_ring_costs_at_most_ten_events(sips: int, cubes: str) -> None:
    """Everything counted: messages, sums, launch, load and store; 64 bytes a tile."""
    machine = small(sips, cubes)
    ranks = machine.spec.num_pes
    run = all_reduce(algorithm("ring_allreduce", "ring_1d", ranks), machine, lambda pe: np.zeros(16, np.float32))
    run.enable_data = False
    before: list[int] = []
    run.started = lambda engine: before.append(engine.n_events)
    run.on_machine()
    assert run.engine is not None
    assert (run.engine.n_events - before[0]) / (ranks * (ranks - 1)) <= 10


@pytest.mark.parametrize("name", sample(["ring_allreduce", "ring_allreduce_rs_ag"], "ring_allreduce_rs_ag"))
def test_more_slots_give_the_same_numbers_and_cost_a_tenth_at_most(name: str) -> None:
    rng = np.random.default_rng(5)
    data = {pe: rng.standard_normal(6000).astype(np.float32) for pe in range(RANKS)}
    times: list[float] = []
    numbers: list[bytes] = []
    for n_slots in (2, 3, 4, 8, 16):
        run = all_reduce(algorithm(name, "ring_1d", RANKS, n_slots=n_slots), small(), lambda pe: data[pe[2]])
        (shards,) = run.on_machine()
        assert run.engine is not None
        numbers.append(b"".join(x.tobytes() for _, x in shards.values()))
        times.append(max(run.engine.get_completion(run.handles[0])[1].pe_exec_ns.values()))
    assert len(set(numbers)) == 1
    assert_no_slower(times)


def assert_no_slower(times: list[float]) -> None:
    """Each takes at most a tenth longer than those before it."""
    assert all(later <= 1.1 * min(times[:at]) for at, later in enumerate(times) if at)


def kernels_ns(chosen: Algorithm, machine: Topology, elements: int) -> float:
    """The longest kernel of an all-reduce of so many f32 each."""
    zeros = np.zeros(elements, np.float32)
    return longest_kernel_ns(all_reduce(chosen, machine, lambda pe: zeros))


@pytest.mark.parametrize(
    ("name", "ranks", "elements"),
    [
        ("tree", 3, 16384),
        slow("tree", 7, 65536),
        slow("tree", 8, 16384),
        slow("tree", 16, 4096),
        slow("hierarchical", 8, 65536),
        slow("hierarchical", 16, 65536),
        ("hierarchical", 8, 8192),
    ],
)
def test_trees_are_hardly_slower_with_more_slots_and_need_but_few(name: str, ranks: int, elements: int) -> None:
    """What goes up keeps as far ahead of what comes down as it has to."""
    pattern, mapper = ("tree_binary", "leader_only") if name == "tree" else ("hierarchical_3level", "all_pes")
    times = [
        kernels_ns(algorithm(f"{name}_allreduce", pattern, ranks, mapper, n_slots=n_slots), small(), elements)
        for n_slots in (2, 3, 4, 16)
    ]
    assert_no_slower(times)
    assert times[1] <= 1.1 * times[-1]


@pytest.mark.parametrize("ranks", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_a_tree_takes_as_long_as_its_bytes(ranks: int) -> None:
    """4 S / link: own data, two children's and the result by one link; 2 floor(log2 n) hops are as nothing."""
    nbytes = 512 * KIB
    ns = kernels_ns(algorithm("tree_allreduce", "tree_binary", ranks), small(), nbytes // 4)
    assert 4 * nbytes / LINK_GBS <= ns * 1.2 <= 4 * nbytes / LINK_GBS * 1.6


@pytest.mark.parametrize(
    ("sips", "fabric", "grid", "root_cube"),
    [
        (4, "ring_1d", "", 3),
        slow(4, "torus_2d", "2x2", 3),
        slow(4, "torus_2d", "2x2", 0),
        (4, "mesh_2d_no_wrap", "2x2", 3),
        slow(6, "torus_2d", "3x2", 3),
    ],
)
def test_cubes_and_sips_are_hardly_slower_with_more_slots(sips: int, fabric: str, grid: str, root_cube: int) -> None:
    """Cubes send first what the SIPs use first."""
    machine = small(sips, "2x2", 1, fabric, grid)
    times = [
        kernels_ns(
            algorithm(
                "intercube_allreduce", "intercube", sips, "pe0_of_every_cube", n_slots=n_slots, root_cube=root_cube
            ),
            machine,
            4096,
        )
        for n_slots in (2, 4, 8, 16)
    ]
    assert_no_slower(times)


@pytest.mark.slow
def test_a_grid_of_sips_is_faster_than_a_ring_and_a_torus_faster_still() -> None:
    """Rows and columns at once have half of a ring's bytes on each link; a torus has half of that."""
    times = {}
    for fabric, grid in (("ring_1d", ""), ("mesh_2d_no_wrap", "2x2"), ("torus_2d", "2x2")):
        chosen = algorithm("intercube_allreduce", "intercube", 4, mapper="pe0_of_every_cube")
        times[fabric] = kernels_ns(chosen, small(4, "2x2", 1, fabric, grid), 16384)
    assert times["torus_2d"] <= 0.95 * times["mesh_2d_no_wrap"]
    assert times["mesh_2d_no_wrap"] <= 0.85 * times["ring_1d"]


@pytest.mark.parametrize(
    ("elements", "mesh_takes", "torus_takes"), [(16, 0.7, 0.7), slow(32768, 0.8, 0.65), (8192, 0.8, 0.65)]
)
def test_a_tensor_of_sips_goes_along_rows_and_columns(elements: int, mesh_takes: float, torus_takes: float) -> None:
    """2 (w + h - 2) hops instead of 2 (n - 1) for little, half and a quarter of the bytes on a link for much."""
    times = {}
    for fabric, grid in (("ring_1d", ""), ("mesh_2d_no_wrap", "3x2"), ("torus_2d", "3x2")):
        tensor = shards_of(6, {(0, 0): elements}, np.random.default_rng(1))
        run = over_sips("sip_allreduce", small(6, "1x1", 1, fabric, grid), [tensor])
        times[fabric] = longest_kernel_ns(run)
    assert times["mesh_2d_no_wrap"] <= mesh_takes * times["ring_1d"]
    assert times["torus_2d"] <= torus_takes * times["ring_1d"]


def test_a_mean_is_made_once_and_copied() -> None:
    """So it takes little longer than a sum: each place divides its own part only."""
    times = {}
    for op in ("sum", "avg"):
        tensor = shards_of(6, {(0, 0): 16384}, np.random.default_rng(1), "f16")
        run = over_sips(
            "sip_allreduce", small(6, "2x1", 1, "mesh_2d_no_wrap", "3x2"), [tensor], reduce_op=op, dtype="f16"
        )
        times[op] = longest_kernel_ns(run)
    assert times["sum"] < times["avg"] <= 1.15 * times["sum"]


@pytest.mark.parametrize(("elements", "at_most_ns"), [(1 << 18, 18_000), slow(1 << 20, 65_000)])
def test_the_mean_of_a_large_tensor_fits_scratch(elements: int, at_most_ns: float) -> None:
    tensor = shards_of(6, {(0, 0): elements}, np.random.default_rng(1), "f16")
    run = over_sips(
        "sip_allreduce",
        small(6, "1x1", 1, "mesh_2d_no_wrap", "3x2"),
        [tensor],
        reduce_op="avg",
        dtype="f16",
        slot_size=65536,
    )
    run.n_slots, run.slot_size = 16, 65536
    assert longest_kernel_ns(run) < at_most_ns


@pytest.mark.parametrize(("name", "elements"), covering(["intercube_allreduce", "sip_allreduce"], [4096, 8]))
def test_a_grid_that_closes_is_not_slower_than_one_that_does_not(name: str, elements: int) -> None:
    """What goes to another place takes the shorter way."""
    times = {}
    for fabric in ("torus_2d", "mesh_2d_no_wrap"):
        machine = small(6, "2x2", 1, fabric, "3x2")
        if name == "sip_allreduce":
            tensor = shards_of(6, {(0, 0): elements}, np.random.default_rng(1), "f16")
            times[fabric] = longest_kernel_ns(over_sips(name, machine, [tensor], dtype="f16"))
        else:
            times[fabric] = kernels_ns(algorithm(name, "intercube", 6, "pe0_of_every_cube"), machine, elements)
    assert times["torus_2d"] <= times["mesh_2d_no_wrap"]
