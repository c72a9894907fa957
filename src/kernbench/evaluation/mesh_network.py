"""A k x k mesh of routers on the transport, configured as the reference mesh: a cycle is 1 ns, a flit is 1 byte.

Node n is at column n mod k, row n div k, and has a source and a destination of its own. Where the cycles of the closed
form 7 + 5·H + (P - 1) sit: 5 for each router entered (H + 1 of them: the links into it carry them), 1 for ejection,
and P for the flits on the narrowest link, all of which are equally wide.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.transport import Network

CYCLE_NS = 1.0
CYCLE_PS = 1000
FLITS_PER_CYCLE_GBS = 1.0
EJECTION_CYCLES = 1


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """``packet_flits``: length of a message. ``unit_flits``: what a link grants at a time (default: a whole message).

    ``fifo_flits``: FIFO at each router input, its injection port included (None: unbounded).
    """

    k: int = 4
    packet_flits: int = 1
    unit_flits: int | None = None
    fifo_flits: int | None = 32
    router_cycles: int = 5

    @property
    def nodes(self) -> int:
        """How many nodes the mesh has."""
        return self.k * self.k

    @property
    def granted_flits(self) -> int:
        """Flits of one grant."""
        return self.packet_flits if self.unit_flits is None else self.unit_flits

    def hops(self, src: int, dst: int) -> int:
        """Links between routers from ``src`` to ``dst``."""
        return abs(src % self.k - dst % self.k) + abs(src // self.k - dst // self.k)

    def zero_load_cycles(self, src: int, dst: int) -> int:
        """Latency of a message that meets nobody: 7 + 5·H + (P - 1) with routers of 5 cycles."""
        routers = self.hops(src, dst) + 1
        return self.router_cycles * routers + EJECTION_CYCLES + self.packet_flits


def build_mesh(spec: MeshSpec, *, express: bool = True) -> Network:
    """The network of ``spec``: per node a source, a router and a destination; links between neighbouring routers."""
    net = Network(spec.granted_flits, express=express)
    for node in range(spec.nodes):
        for other in neighbours(spec.k, node):
            _router_link(net, spec, f"r{node}", f"r{other}")
        _router_link(net, spec, f"s{node}", f"r{node}")
        net.link(f"r{node}", f"d{node}", bw_gbs=FLITS_PER_CYCLE_GBS, overhead_ns=EJECTION_CYCLES * CYCLE_NS)
    return net


def _router_link(net: Network, spec: MeshSpec, src: str, dst: str) -> None:
    net.link(
        src,
        dst,
        bw_gbs=FLITS_PER_CYCLE_GBS,
        overhead_ns=spec.router_cycles * CYCLE_NS,
        fifo_bytes=spec.fifo_flits,
    )


def neighbours(k: int, node: int) -> list[int]:
    """Nodes next to ``node``: east, west, south, north as far as they exist."""
    x, y = node % k, node // k
    around = ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1))
    return [b * k + a for a, b in around if 0 <= a < k and 0 <= b < k]


def xy_routers(k: int, src: int, dst: int) -> list[int]:
    """The routers from ``src`` to ``dst``, both included: along the row first, then along the column."""
    x, y = src % k, src // k
    to_x, to_y = dst % k, dst // k
    way = [src]
    while x != to_x:
        x += 1 if to_x > x else -1
        way.append(y * k + x)
    while y != to_y:
        y += 1 if to_y > y else -1
        way.append(y * k + x)
    return way


def xy_route(k: int, src: int, dst: int) -> tuple[str, ...]:
    """The same as names of nodes of the network, from the source to the destination."""
    return (f"s{src}", *(f"r{n}" for n in xy_routers(k, src, dst)), f"d{dst}")
