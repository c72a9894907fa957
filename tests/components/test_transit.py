"""Parts in transit that choose ways and hold heads, on a whole machine; times are summed by hand in comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine_support import hbm, machine
from ideal_memory import IDEAL
from kernbench.common.errors import PartError
from kernbench.components.passive import NocRouter
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.messages.requests import PeDmaMsg
from kernbench.topology.builder import Topology
from kernbench.topology.graph import Node
from kernbench.transport import Transfer, Way

# A DMA takes 2 ns to be set up; from a PE in the corner NW to the slice 6 in the corner SE it is 11 ns: 2 for each xbar
# and 1 for each of 7 routers; and as many back. Wires take no time here.
FAR_READ_NS = 2 + 11 + 32 / 256 + 30 + 20 + 11
"""4 KiB: the header, 30 ns until the first byte, and 20 ns for the data at 204.8 GB/s"""
FAR_WRITE_NS = 2 + 11 + 20 + 30 + 11 + 32 / 256


class Usual(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        return ways[0]


class Last(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        return ways[-1]


class AtRandom(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        return self.random.choice(ways)


class Slow(NocRouter):
    """Holds every head 5 ns at one router."""

    def hold_ns(self, transfer: Transfer) -> float:
        return 5 if self.node.xy == (1, 0) else 0


class TokenBucket(NocRouter):
    """Lets 64 bytes pass in a ns, and 4 KiB at once after a pause, at one router."""

    tokens, since_ns = 4096.0, 0.0

    def hold_ns(self, transfer: Transfer) -> float:
        if self.node.xy != (1, 0):
            return 0
        earned = 64 * (self.now_ns - self.since_ns)
        self.since_ns = self.now_ns
        self.tokens = min(4096, self.tokens + earned) - transfer.nbytes
        return max(0, -self.tokens / 64)


def with_routers(cls: type, *overrides: str) -> Topology:
    return machine(*IDEAL, "ns_per_mm=0", f"cube.components.noc_router.impl={__name__}.{cls.__name__}", *overrides)


def far(engine: GraphEngine, op: str, *pes: int, repeat: int = 1) -> list[float]:
    """When PEs of a cube have read or written 4 KiB of slice 6 each, all from now on, in ns."""
    messages = [
        PeDmaMsg(pe=(0, 0, pe), pa=hbm(0, 0, 6), nbytes=4096, op=op, repeat=repeat, outstanding=repeat)  # type: ignore[arg-type]
        for pe in pes
    ]
    return [engine.wait(handle).t_end for handle in [engine.submit(each) for each in messages]]


@pytest.mark.parametrize(
    ("cls", "op", "expected_ns"),
    [
        (NocRouter, "read", FAR_READ_NS),
        (Usual, "read", FAR_READ_NS),
        (Last, "read", FAR_READ_NS),
        (AtRandom, "read", FAR_READ_NS),
        (Slow, "read", FAR_READ_NS + 5),  # the answer comes back by the other side of the mesh
        (NocRouter, "write", FAR_WRITE_NS),
        (Last, "write", FAR_WRITE_NS),
        (Slow, "write", FAR_WRITE_NS + 5),
        (TokenBucket, "write", FAR_WRITE_NS),
    ],
)
def test_a_transfer_alone(cls: type, op: str, expected_ns: float) -> None:
    engine = GraphEngine(machine(*IDEAL, "ns_per_mm=0") if cls is NocRouter else with_routers(cls), enable_data=False)
    assert far(engine, op, 0) == [expected_ns]


def test_a_token_bucket_holds_what_comes_too_soon() -> None:
    engine = GraphEngine(with_routers(TokenBucket), enable_data=False)
    # The second write leaves the DMA 16 ns after the first (4 KiB at 256 GB/s), and finds tokens for 16 · 64 bytes: the
    # 3 KiB that are missing take 48 ns.
    assert far(engine, "write", 0, repeat=2) == [FAR_WRITE_NS + 16 + 48]


def test_where_it_goes() -> None:
    engine = GraphEngine(with_routers(Last), enable_data=False, trace_hops=True)
    (end,) = far(engine, "read", 0)
    assert end == FAR_READ_NS
    _, trace = engine.get_completion(engine.handles[0])
    request, answer = trace.transfers
    nodes = [hop.dst.removeprefix("sip0.cube0.") for hop in request.hops]
    # South first, and east along the row of the last router.
    assert nodes == ["xbar_NW", "r0_0", "r0_1", "r0_2", "r0_3", "r1_3", "r2_3", "r3_3", "xbar_SE", "hbm6"]
    # The answer goes west first unless it is sent another way: north, and west along the first row.
    assert [hop.dst.rpartition(".")[2] for hop in answer.hops][2:5] == ["r3_2", "r3_1", "r3_0"]
    for transfer in trace.transfers:
        starts = [hop.start_ps for hop in transfer.hops]
        assert starts == sorted(starts)
        assert transfer.hops[-1].dst == transfer.destination
    assert engine.machine.network.links["sip0.cube0.r0_0", "sip0.cube0.r0_1"].nbytes == 32
    assert engine.machine.network.links["sip0.cube0.r0_0", "sip0.cube0.r1_0"].nbytes == 0


def test_others_still_go_express() -> None:
    # PE 0 and its own slice meet at the xbar.
    message = PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=4096)
    engine = GraphEngine(with_routers(Usual), enable_data=False)
    engine.wait(engine.submit(message))
    assert engine.machine.network.express.n_admitted == 2
    far(engine, "read", 0)
    assert engine.machine.network.express.n_admitted == 2


# --- much traffic -----------------------------------------------------------------------------------------------------


def crowd(*overrides: str) -> tuple[list[int], dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    """Reads and writes of every PE of 4 cubes: their ends in ps, the bytes of each link, and what they should be."""
    topology = with_routers(AtRandom, "sip.cube_mesh={w: 2, h: 2}", f"sip.components.io_noc.impl={__name__}.AtRandom")
    engine = GraphEngine(topology, enable_data=False, trace_hops=True)
    handles = [
        engine.submit(
            PeDmaMsg(
                pe=(sip, cube, pe),
                pa=hbm((sip + pe) % 2, (cube + pe) % 4, 7 - pe),
                nbytes=1500,
                op="read" if pe % 3 else "write",
                repeat=4,
                outstanding=4,
            )
        )
        for sip in range(2)
        for cube in range(4)
        for pe in range(8)
    ]
    for handle in handles:
        engine.wait(handle)
    links = engine.machine.network.links
    due = dict.fromkeys(links, 0)
    for transfer in {each for handle in handles for each in engine.get_completion(handle)[1].transfers}:
        for link in transfer.route.links:
            due[link.src, link.dst] += transfer.nbytes
    return [handle.ended_ps for handle in handles], {ends: link.nbytes for ends, link in links.items()}, due


def test_with_ways_at_random_all_bytes_arrive_and_every_run_is_the_same() -> None:
    ends, carried, due = crowd()
    assert carried == due
    assert crowd() == (ends, carried, due)
    # One packet fits into a FIFO: nothing waits in a cycle, since those behind the routers are unbounded.
    assert len(crowd("transport.fifo_bytes=1024")[0]) == len(ends)


# --- what can be wrong ------------------------------------------------------------------------------------------------


class Nowhere(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Any:
        return None


class ItsOwnWay(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        return Way(ways[0].links)


class Raising(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        return ways[len(ways)]


class Yielding(NocRouter):
    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Any:
        yield ways[0]


class TooFew(NocRouter):
    def forward(self, transfer: Transfer) -> Any:  # type: ignore[override]
        return None


class Backwards(NocRouter):
    def hold_ns(self, transfer: Transfer) -> float:
        return -1.0


class Endless(NocRouter):
    def hold_ns(self, transfer: Transfer) -> float:
        return float("nan")


class InWords(NocRouter):
    def hold_ns(self, transfer: Transfer) -> Any:
        return "5 ns"


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Nowhere, "forward() returned None, which is not one of the 2 ways passed to it"),
        (ItsOwnWay, "forward() returned a Way, which is not one of the 2 ways passed to it"),
        (Raising, "IndexError: tuple index out of range"),
        (Yielding, "forward() returned a generator, which is not one of the 2 ways passed to it"),
        (TooFew, "TypeError: TooFew.forward() takes 2 positional arguments but 3 were given"),
        (Backwards, "hold_ns() is -1.0, must be a number of ns, at least 0"),
        (Endless, "hold_ns() is nan, must be a number of ns, at least 0"),
        (InWords, "hold_ns() is '5 ns', must be a number of ns, at least 0"),
    ],
)
def test_what_is_wrong_names_part_time_and_line(cls: type, said: str) -> None:
    engine = GraphEngine(with_routers(cls), enable_data=False)
    with pytest.raises(PartError) as caught:
        far(engine, "read", 0)
    # The set-up, the xbar and the router: its overhead is over when it is asked.
    text = str(caught.value)
    assert text.startswith(f"sip0.cube0.r0_0 ({__name__}.{cls.__name__}) failed at 5 ns: {said} (")
    assert f"at {__file__}:" in text


class FailsOnce(NocRouter):
    """Fails at the first transfer that comes to it."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.asked = 0

    def hold_ns(self, transfer: Transfer) -> float:
        self.asked += 1
        if self.asked == 1 and self.node.id == "sip0.cube0.r0_0":
            raise ValueError("not yet")
        return 0.0


def test_after_a_failure_nothing_is_stuck() -> None:
    engine = GraphEngine(with_routers(FailsOnce), enable_data=False)
    with pytest.raises(PartError, match="not yet"):
        far(engine, "read", 0)
    handle = engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 6), nbytes=4096, op="read"))
    began_ns = engine.now  # what was under way has run out
    assert engine.wait(handle).t_end == pytest.approx(began_ns + FAR_READ_NS)
