"""Products of PyTorch on rings of PEs: the queues of the rings, and the program of a product."""

from __future__ import annotations

from kernbench.ccl.config import QueueSettings, SlotSize
from kernbench.ccl.topologies import QueueEdge
from kernbench.common.dtypes import DType
from kernbench.common.dtypes import dtype as element_type
from kernbench.frontends.placed import whole_grid
from kernbench.kernels.gemm_grid import BlockProduct
from kernbench.kernels.product_rings import RingProduct, RingQueues, plan_block
from kernbench.kernels.ring_paths import CubeRing, plan_rings
from kernbench.kernels.ring_sizes import RING_SLOTS, SUM_SLOTS, RingChoice, RingMachine
from kernbench.kernels.shares import part
from kernbench.runtime_api.context import AnyContext


def ring_machine(context: AnyContext, item: DType) -> RingMachine:
    """Return the rates of the cubes and PEs that tensors are sharded over, for factors of dtype ``item``."""
    cubes, pes = whole_grid(context)
    return RingMachine.of(context.topology, item, cubes, pes)


def rings_of(context: AnyContext) -> RingMachine:
    """Return the rates for some dtype, where only the queues of the rings matter: these are the same for all dtypes."""
    return ring_machine(context, element_type(next(iter(context.topology.pe.gemm.macs_per_ns))))


def install_rings(context: AnyContext, sip: int) -> None:
    """Install the queues of all rings of a SIP, once, when its first tensor is created."""
    machine = rings_of(context)
    edges: list[QueueEdge] = []
    slots: dict[str, SlotSize] = {}
    for n_blocks in machine.block_counts:
        queues = RingQueues(n_blocks)
        out, half_sum = f"{queues.piece}_out", f"{queues.half_sum}_out"
        slots |= {out: SlotSize(RING_SLOTS, machine.slot_bytes), half_sum: SlotSize(SUM_SLOTS, machine.slot_bytes)}
        for block in plan_rings(machine.mesh, machine.form, machine.cubes, n_blocks):
            edges += _edges_of(block, sip, out, half_sum)
    if edges:
        context.install_queues(f"products of sip{sip}", edges, QueueSettings(), slots)


def _edges_of(block: CubeRing, sip: int, out: str, half_sum: str) -> list[QueueEdge]:
    """Return the edges of the rings of a block: to the next PE, and between PEs of a cube with the same columns."""
    edges: list[QueueEdge] = []
    for ring in block.rings:
        for place, after in zip(ring, (*ring[1:], ring[0]), strict=True):
            edges.append(((sip, place.cube, place.pe), out, (sip, after.cube, after.pe)))
    partners = [{(place.cube, place.part): (sip, place.cube, place.pe) for place in ring} for ring in block.rings]
    if len(partners) > 1:
        for key, pe in partners[0].items():
            edges += [(pe, half_sum, partners[1][key]), (partners[1][key], half_sum, pe)]
    return edges


def ring_product(machine: RingMachine, choice: RingChoice, product: BlockProduct) -> RingProduct:
    """Return a product on the rings of ``choice``."""
    _, m, k = product.a.extents
    rings = plan_rings(machine.mesh, machine.form, machine.cubes, choice.blocks)
    planned = [
        plan_block(ring, part(m, len(rings), number), k, m / machine.cubes, choice.sizes, machine.tile[1])
        for number, ring in enumerate(rings)
    ]
    return RingProduct.of(product, planned, choice.sizes)
