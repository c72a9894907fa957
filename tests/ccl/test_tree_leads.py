"""How far a node of a tree sends ahead of what comes down, and that no lead makes a tree stop."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from algorithm_support import assert_reduced
from hypothesis import example, given
from hypothesis import strategies as st

from compiled import compiled
from kernbench.ccl.algorithms import tree_allreduce
from kernbench.ccl.loading import hop_bytes
from kernbench.ccl.pieces import Messages
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.ccl.trees import Hops, hops_to_root

PIECE = 4096 // 4
PATTERNS = {"tree_allreduce": "tree_binary", "hierarchical_allreduce": "hierarchical_3level"}


HOPS = (4 << 10, 12 << 10, 20 << 10)  # what a hop of each level has under way


def lead(hops: Hops, n_slots: int, elements: int = PIECE) -> int:
    return hops.lead(Messages("sum", elements, 4, n_slots, hop_bytes=HOPS))


def test_hops_of_a_binary_tree() -> None:
    assert hops_to_root(0) == (0, 0, 0)
    assert hops_to_root(5) == (0, 0, 2)  # of SIPs: 5, 2, 0
    assert hops_to_root(6, pes_per_cube=8) == (2, 0, 0)
    assert hops_to_root(13, pes_per_cube=4, cubes_per_sip=2) == (1, 1, 1)  # 13, in SIP 1; 6, in cube 1; 2, in cube 0; 0


def test_a_lead_is_what_a_hop_has_under_way() -> None:
    """There and back 4, 12 and 20 KiB, rounded up to pieces, and the piece that is made."""
    assert lead(Hops(0, 0, 0), 16) == 0
    assert [lead(hops, 16) for hops in (Hops(1, 0, 0), Hops(0, 1, 0), Hops(0, 0, 1))] == [2, 4, 6]
    assert lead(Hops(2, 1, 1), 16) == 2 * 2 + 4 + 6
    assert lead(Hops(1, 0, 0), 16, elements=PIECE // 4) == 5
    assert lead(Hops(1, 0, 0), 16, elements=3 * PIECE) == 2


def test_what_a_hop_has_under_way_is_bandwidth_times_delay() -> None:
    """So links of twice the bandwidth hold twice as much."""
    machine = compiled().spec
    links = ["sip.links.cube_to_cube", "system.links.sip_to_sip", "cube.links.pe_to_xbar"]
    wider = [f"{link}.bw_gbs={2 * bw}" for link, bw in zip(links, (256, 128, 256), strict=True)]
    doubled = hop_bytes(compiled(*wider).spec)
    assert all(abs(more - 2 * once) <= 1 for more, once in zip(doubled, hop_bytes(machine), strict=True))


def test_a_hop_adds_no_more_than_there_are_slots() -> None:
    assert lead(Hops(1, 1, 1), 3) == 2 + 3 + 3
    assert lead(Hops(2, 1, 0), 1) == 3


@given(
    name=st.sampled_from(("tree_allreduce", "hierarchical_allreduce")),
    ranks=st.sampled_from((2, 4, 8, 16)),
    pes_per_cube=st.sampled_from((1, 2, 4, 8)),
    n_slots=st.sampled_from((1, 2, 3, 4, 9, 16)),
    pieces=st.integers(1, 40),
    bytes_each=st.sampled_from((64, 512, 2048, 4096, 16384)),
)
@example("tree_allreduce", 16, 8, 9, 80, 512)
@example("tree_allreduce", 16, 8, 5, 80, 2048)
@example("tree_allreduce", 16, 4, 9, 80, 1024)
def test_no_lead_stops_a_tree(
    name: str, ranks: int, pes_per_cube: int, n_slots: int, pieces: int, bytes_each: int
) -> None:
    """Short pieces want long leads, which slots limit."""
    elements = pieces * bytes_each // 4 - 3
    inputs = [np.full(elements, rank, np.float32) for rank in range(ranks)]
    module: Any = importlib.import_module(f"kernbench.ccl.algorithms.{name}")
    queues: dict[str, Any] = {"n_slots": n_slots, "slot_size": bytes_each}
    outputs = run_kernel_in_mock(
        module.kernel, ranks, PATTERNS[name], inputs, algo_module=module, pes_per_cube=pes_per_cube, **queues
    )
    assert_reduced(outputs, inputs, "sum")


def test_a_kernel_that_is_not_told_of_slots_runs_with_one() -> None:
    def kernel(t_ptr: int, n: int, ranks: int, *, tl: Any) -> None:
        args = tree_allreduce.kernel_args(n_elem=n, world_size=ranks, slot_size=64, dtype="f32")
        tree_allreduce.kernel(t_ptr, *args, tl=tl)

    inputs = [np.full(1000, rank, np.float32) for rank in range(7)]
    outputs = run_kernel_in_mock(kernel, 7, "tree_binary", inputs, (1000, 7), n_slots=1, slot_size=64)
    assert_reduced(outputs, inputs, "sum")
