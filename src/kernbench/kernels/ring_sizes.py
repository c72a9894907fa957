"""Sizes of products on rings of PEs, and their predicted times, from the rates of a machine."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from kernbench.common.dtypes import DType
from kernbench.common.values import value
from kernbench.kernels.product_grids import PeRates
from kernbench.kernels.product_rings import RingSizes
from kernbench.kernels.ring_paths import CubeForm, block_counts, busiest_link
from kernbench.topology.grid import Grid
from kernbench.topology.spec import TopologySpec

RING_SLOTS = 8
"""Slots of a queue of a ring: as many pieces as are under way in a round trip, and as many that begin there."""
SUM_SLOTS = 2
"""Slots of a queue of half sums: they are copied when they arrive, and one more arrives meanwhile."""
_TRANSFER_HOPS = 2
"""Minimum time of the bytes of a full slot, in times of its message without bytes."""
ABOUT_AS_LONG = 1 + 1 / 32
"""Ratio of times that a prediction does not tell apart."""
_MOST_INTERLEAVED = 4
"""Maximum number of row blocks whose sums are incomplete at a time: they are finished together."""
_SHARE_OF_TCM = 8
"""The queues of all rings take at most this share of scratch."""


@value
class RingMachine:
    """The rates that decide on rings, for factors of one dtype.

    ``hop_ns``: time of a message from a PE to the next without its bytes; every other message leaves its corner.
    ``bytes_per_ns``: rate of its bytes. ``memory_bytes_per_ns``: rate at which a PE reads memory.
    ``far_bytes_per_ns``: rate at which a cube reads the memories of other cubes. ``link_bytes_per_ns``: rate of a link
    between cubes. ``dot_ns``: time of a dot beside its tiles, the first of which are fetched. ``burst_bytes``: the
    least bytes that a run of a row costs.
    """

    mesh: Grid
    form: CubeForm
    cubes: int
    tile: tuple[int, int, int]
    tile_ns: float
    hop_ns: float
    bytes_per_ns: float
    memory_bytes_per_ns: float
    far_bytes_per_ns: float
    link_bytes_per_ns: float
    dot_ns: float
    access_ns: float
    burst_bytes: int
    scratch_bytes: int

    @staticmethod
    def of(spec: TopologySpec, item: DType, cubes: int, pes: int) -> RingMachine:
        """Return the rates of a machine whose first ``cubes`` cubes, and ``pes`` PEs of each, are used."""
        gemm, links, parts = spec.pe.gemm, spec.cube.links, spec.cube.components
        rate = min(
            links.pe_to_xbar.bw_gbs,
            links.xbar_to_router.bw_gbs,
            spec.cube.noc.link_bw_gbs,
            links.router_to_ucie.bw_gbs,
            spec.sip.links.cube_to_cube.bw_gbs,
        )
        noc, (tile_m, tile_k, tile_n) = spec.cube.noc, gemm.tile_sizes
        hop_ns = (
            2 * spec.pe.components.pe_ipcq.attrs.overhead_ns
            + spec.pe.dma.setup_ns
            + 2 * parts.xbar.attrs.overhead_ns
            + (noc.w + noc.h) * (parts.noc_router.attrs.overhead_ns + spec.transport.packet_bytes / rate / 2)
            + 2 * parts.ucie.attrs.overhead_ns
        )
        return RingMachine(
            mesh=spec.sip.cube_mesh.grid,
            form=CubeForm.of(spec.cube, pes),
            cubes=cubes,
            tile=gemm.tile_sizes,
            tile_ns=gemm.tile_ns(item),
            hop_ns=hop_ns,
            bytes_per_ns=rate,
            memory_bytes_per_ns=min(links.pe_to_xbar.bw_gbs, spec.cube.slice_bw_gbs),
            link_bytes_per_ns=spec.sip.links.cube_to_cube.bw_gbs,
            far_bytes_per_ns=PeRates.of(spec, item).link_bytes_per_ns,
            dot_ns=(tile_m + tile_n) * tile_k * item.itemsize / spec.pe.tcm.read_bw_gbs,
            access_ns=spec.cube.hbm_access_ns,
            burst_bytes=1 if spec.cube.hbm.banks is None else spec.cube.hbm.banks.burst_bytes,
            scratch_bytes=spec.pe.tcm.scratch_bytes,
        )

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of a piece's slot; 0 if scratch has no room for rings.

        Its bytes take at least `_TRANSFER_HOPS` times as long as the message without them. It has full tiles of 2-byte
        elements.
        """
        tile_m, tile_k, _ = self.tile
        least = nbytes = tile_m * tile_k * 2
        while nbytes < _TRANSFER_HOPS * self.hop_ns * self.bytes_per_ns:
            nbytes *= 2
        while nbytes > least and _ring_bytes(nbytes) > self.scratch_bytes // _SHARE_OF_TCM:
            nbytes //= 2
        return nbytes if _ring_bytes(nbytes) <= self.scratch_bytes // _SHARE_OF_TCM else 0

    @property
    def block_counts(self) -> list[int]:
        """Return the numbers of blocks of cubes that have rings, as many as fit in their share of scratch.

        A ring has three PEs or more: of two, each is behind and before the other.
        """
        if self.cubes < 2 or not self.slot_bytes:
            return []
        room = self.scratch_bytes // _SHARE_OF_TCM // _ring_bytes(self.slot_bytes)
        counts = block_counts(self.mesh, self.cubes)
        return [count for count in counts if self.cubes // count * self.parts > 2][:room]

    def crossing_part(self, n_blocks: int, n: int, b_by_rows: bool) -> float:
        """Return the bytes over the busiest link between cubes, as a part of the bytes of B that a cube multiplies."""
        has_places = n % (self.cubes * self.parts) == 0
        return busiest_link(self.mesh, self.cubes, n_blocks, has_places, b_by_rows)

    @property
    def staging_ns(self) -> float:
        """Return the time to stage operands without their bytes: a read, a write, a barrier, and the next read."""
        return 8 * self.hop_ns + 4 * self.access_ns

    @property
    def groups(self) -> int:
        """Return the number of groups of a cube's PEs, each on a ring of its own."""
        return 1 if len(self.form.corners) % 2 else 2

    @property
    def parts(self) -> int:
        """Return the number of PEs of a group in a cube."""
        return len(self.form.corners) // self.groups

    @property
    def free_bytes(self) -> int:
        """Return the bytes of scratch beside the queues of all rings."""
        return self.scratch_bytes - len(self.block_counts) * _ring_bytes(self.slot_bytes)


def _ceil(n: int, size: int) -> int:
    return -(-n // size)


def _ring_bytes(slot_bytes: int) -> int:
    """Return the bytes of the queues of a PE on one ring."""
    return slot_bytes * (RING_SLOTS + SUM_SLOTS)


@value
class RingChoice:
    """A product on rings of ``blocks`` blocks of cubes, and its predicted time."""

    ns: float
    blocks: int
    sizes: RingSizes


@lru_cache(maxsize=4096)
def choose_rings(
    machine: RingMachine, batch: int, m: int, k: int, n: int, item: DType, b_by_rows: bool
) -> RingChoice | None:
    """Return the blocks and sizes that minimise the predicted time of a product on rings; None if there are none.

    Of choices that take about as long, the one with the largest pieces is returned, as each piece costs commands.
    """
    choices = list_choices(machine, batch, m, k, n, item, b_by_rows)
    least = min((choice.ns for choice in choices), default=0.0)
    near = (choice for choice in choices if choice.ns <= least * ABOUT_AS_LONG)
    return max(near, key=lambda choice: (choice.sizes.depth, -choice.ns), default=None)


def list_choices(
    machine: RingMachine, batch: int, m: int, k: int, n: int, item: DType, b_by_rows: bool
) -> list[RingChoice]:
    """Return all blocks and sizes of a product on rings, with their predicted times."""
    tile_m, tile_k, _ = machine.tile
    choices = []
    for n_blocks in machine.block_counts:
        depth = tile_k
        while tile_m * depth * item.itemsize <= machine.slot_bytes:
            sizes = _sizes(machine, n_blocks, depth, k, n, item)
            if sizes is not None and m >= n_blocks:
                ns = _predict_ns(machine, n_blocks, sizes, (batch, m, k, n), item, b_by_rows)
                choices.append(RingChoice(ns, n_blocks, sizes))
            depth *= 2
    return choices


def _sizes(machine: RingMachine, n_blocks: int, depth: int, k: int, n: int, item: DType) -> RingSizes | None:
    """Return the sizes for pieces of ``depth``; None if scratch lacks room, or if a group would have no part of K."""
    tile_m, tile_k, tile_n = machine.tile
    groups, parts = machine.groups, machine.parts
    if k <= (groups - 1) * tile_k:
        return None
    width = _ceil(n, machine.cubes // n_blocks * parts)
    k_of_group = _ceil(_ceil(k, tile_k), groups) * tile_k
    most = machine.free_bytes // 2 // (k_of_group * item.itemsize)
    if most < min(tile_n, width):
        return None
    pass_columns = min(width, most if most < tile_n else most // tile_n * tile_n)
    columns = max(1, machine.slot_bytes // (tile_m * 4 * tile_n)) * tile_n
    wave_bytes = pass_columns * (4 + item.itemsize) / 2
    wave_rows = max(tile_m, int(machine.free_bytes / 4 / wave_bytes))
    panel_ns = depth * pass_columns * item.itemsize / machine.memory_bytes_per_ns
    dot_ns = _ceil(depth, tile_k) * _ceil(pass_columns, tile_n) * machine.tile_ns
    interleaved = min(_MOST_INTERLEAVED, max(1, ceil(panel_ns / dot_ns)))
    return RingSizes(tile_m, depth, RING_SLOTS // 2, interleaved, min(columns, pass_columns), pass_columns, wave_rows)


def _predict_ns(
    machine: RingMachine,
    n_blocks: int,
    sizes: RingSizes,
    shape: tuple[int, int, int, int],
    item: DType,
    b_by_rows: bool,
) -> float:
    """Return the predicted time: a first piece and panel, all pieces or B, and the last half sum and result."""
    (batch, m, k, n), (tile_m, tile_k, tile_n) = shape, machine.tile
    length = machine.cubes // n_blocks * machine.parts
    width = _ceil(n, length)
    passes = _ceil(width, sizes.pass_columns)
    k_of_group = min(k, _ceil(_ceil(k, tile_k), machine.groups) * tile_k)
    pieces = _ceil(_ceil(m, n_blocks), sizes.rows) * _ceil(k_of_group, sizes.depth)
    depth = min(k_of_group, sizes.depth)
    dot_ns = _ceil(depth, tile_k) * _ceil(width, tile_n) * _ceil(sizes.rows, tile_m) * machine.tile_ns
    dot_ns += machine.dot_ns
    send_ns = sizes.rows * depth * item.itemsize / machine.bytes_per_ns
    turns = _ceil(pieces, length * sizes.own_pieces)
    round_ns = turns * (length - 1) * (machine.hop_ns + send_ns)
    # B arrives from memories of this cube, and of other cubes if a cube does not store its columns.
    row_bytes = max(width * item.itemsize, machine.burst_bytes) if b_by_rows else width * item.itemsize
    local_ns = k_of_group * row_bytes / machine.memory_bytes_per_ns
    cube_bytes = k * row_bytes * machine.parts
    if batch > 1:  # a matrix of a batch is stored by its part of the cubes alone
        far_ns = (1 - 1 / machine.cubes) * cube_bytes * min(batch, machine.cubes) / machine.far_bytes_per_ns
    else:
        far_ns = machine.crossing_part(n_blocks, n, b_by_rows) * cube_bytes / machine.link_bytes_per_ns
    # Of few pieces, each arrives long after the one before it. Work waits for it, unless the round takes longer anyway.
    work_ns = pieces * max(dot_ns, send_ns)
    exposed_ns = round_ns / 4 * length / (length + pieces) if round_ns < work_ns else 0.0
    flow_ns = max(work_ns, round_ns, local_ns) + exposed_ns
    begin_ns = 2 * machine.access_ns + send_ns + depth * width * item.itemsize / machine.memory_bytes_per_ns
    end_ns = dot_ns + machine.hop_ns + sizes.rows * width * 4 / machine.bytes_per_ns + 2 * machine.access_ns
    return batch * (begin_ns + passes * (flow_ns + far_ns) + end_ns)
