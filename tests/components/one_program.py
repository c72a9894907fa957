"""A small program that uses all of a small machine, in steps, and what is simulated of it: a fingerprint after each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product as pairs_of
from typing import Any, TypeAlias

import numpy as np

from kernbench.ccl.config import CclConfig
from kernbench.common.errors import KernbenchError
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import queue_pairs_of
from kernbench.messages.commands import Operand
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.observe.energy import EnergyCounts, measure_energy
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.area import measure_area
from kernbench.topology.builder import Topology

SMALL = (
    "sip.cube_mesh={w: 2, h: 1}",
    "cube.noc.w=2",
    "cube.noc.h=2",
    "cube.pe_layout={pe_per_corner: 1, corners: [NW, SE]}",
    "cube.hbm.slices=2",
)
"""Two SIPs of two cubes of two PEs."""
EVERYWHERE = DPPolicy("row_wise", "row_wise")

Torch: TypeAlias = RuntimeContext[Any]
Step: TypeAlias = Callable[[Torch], object]
Observe: TypeAlias = Callable[[GraphEngine], object]


def host_copies(torch: Torch) -> None:
    """Copies both ways, fills of all PEs of a cube at once, maps."""
    x = torch.tensor(np.arange(4 * 300, dtype=np.float32).reshape(4, 300), dp=EVERYWHERE, name="x")
    torch.zeros(4, 3000, dp=EVERYWHERE)
    x.numpy()


def product(x_ptr, w_ptr, y_ptr, m, k, n, dtype, *, tl):
    """A GEMM of several tiles, streamed; the same of what lies in TCM, and math on the result, which is looked at."""
    result = "i32" if dtype == "i8" else "f32"
    tl.composite("gemm", tl.ref(x_ptr, (m, k), dtype), tl.ref(w_ptr, (k, n), dtype), y_ptr, out_dtype=result)
    a, b = tl.load(x_ptr, (m, k), dtype), tl.load(w_ptr, (k, n), dtype)
    tl.barrier()
    tl.store(y_ptr, tl.dot(a, b, out_dtype=result) * 2 + 1)
    tl.load(y_ptr, (m, n), result)


def products(torch: Torch, dtype: str, m: int = 40, k: int = 100, n: int = 40) -> object:
    """Streamed and staged, on a PE."""
    values = np.arange(m * k) % 5 + (0 if dtype == "i8" else 0.3)
    x, w = (torch.tensor(values.reshape(shape), dtype=dtype) for shape in ((m, k), (k, n)))
    y = torch.empty(m, n, dtype="i32" if dtype == "i8" else "f32")
    torch.launch("product", product, x, w, y, m, k, n, dtype)
    return y.numpy().tobytes()


def mathematics(x_ptr, n, dtype, *, tl):
    """A product, a quotient, a selection and casts, of all elements."""
    x = tl.load(x_ptr, (n,), dtype)
    chosen = tl.where(x > 3, x, x * x / x)
    tl.store(x_ptr, tl.cast(tl.cast(chosen, "f32"), dtype))


def elements(torch: Torch, dtype: str, n: int = 100) -> object:
    """All classes of work on elements, on a PE."""
    x = torch.tensor(np.arange(1, n + 1) % 7 + 1, dtype=dtype)
    torch.launch("mathematics", mathematics, x, n, dtype)
    return x.numpy().tobytes()


EVERY_ELEMENT: tuple[Step, ...] = tuple(partial(elements, dtype=dtype) for dtype in ("f32", "f16", "i32"))


def queues(torch: Torch) -> object:
    """The queues of the configured algorithm: who is whose neighbour, and the rings that they have."""
    plan = torch.install_ipcq()
    pairs = [
        (pe, pair.direction, pair.peer, pair.my_rx_base_pa, pair.n_slots, pair.slot_size)
        for pes in plan.rank_pes
        for pe in pes
        for pair in queue_pairs_of(torch.engine.machine, pe).values()
    ]
    torch.uninstall_ipcq(plan)
    return pairs


def traffic(torch: Torch) -> None:
    """All PEs of a SIP at once: a hot slice of the last cube, odd pieces of their own, SRAM, a TCM, the last SIP."""
    spec, fmt = torch.topology, AddressFormat(torch.topology.address.format)
    size, last, away_sip = spec.cube.hbm.bytes_per_slice, spec.cubes_per_sip - 1, spec.num_sips - 1
    hot = PhysAddr.pe_hbm_addr(0, 0, last, 0, 0, size, fmt).encode()
    sram = PhysAddr.cube_sram_addr(0, 0, last, 0, fmt).encode()
    tcm_owner = (0, last, spec.pes_per_cube - 1)
    tcm = PhysAddr.pe_tcm_addr(0, *tcm_owner, 0, fmt).encode()
    away = PhysAddr.pe_hbm_addr(0, away_sip, 0, 0, 0, size, fmt).encode()
    messages: list[HostMsg] = []
    for cube, pe in pairs_of(range(spec.cubes_per_sip), range(spec.pes_per_cube)):
        dma = partial(PeDmaMsg, pe=(0, cube, pe))
        own = PhysAddr.pe_hbm_addr(0, 0, cube, spec.cube.local_slice(pe), 0, size, fmt).encode()
        messages += [
            dma(pa=hot, nbytes=40_000),
            dma(pa=hot, nbytes=20_000, op="write"),
            dma(pa=own + 8, nbytes=24, repeat=12, outstanding=6, stride_bytes=1300),
            dma(pa=own, nbytes=9_000, op="write", repeat=2, outstanding=2),
            dma(pa=sram, nbytes=10_000),
            dma(pa=away, nbytes=6_000, op="write"),
        ]
        if (0, cube, pe) != tcm_owner:
            messages += [dma(pa=tcm, nbytes=5_000, op=op) for op in ("read", "write")]
    messages += [MemoryReadMsg(pa=away, nbytes=30_000), MemoryReadMsg(pa=tcm, nbytes=3_000)]
    messages += [MemoryWriteMsg(pa=hot + at, nbytes=50_000, pattern=b"x") for at in (0, 1 << 16, 1 << 17)]
    for handle in [torch.submit(message) for message in messages]:
        torch.wait(handle)


def near_memories(torch: Torch) -> None:
    """All other PEs of a SIP read the SRAM of the first PE's cube and its TCM at once, each its own part."""
    fmt = AddressFormat(torch.topology.address.format)
    sram, tcm = PhysAddr.cube_sram_addr(0, 0, 0, 0, fmt).encode(), PhysAddr.pe_tcm_addr(0, 0, 0, 0, 0, fmt).encode()
    _, *others = pairs_of(range(torch.topology.cubes_per_sip), range(torch.topology.pes_per_cube))
    reads = [
        PeDmaMsg(pe=(0, *pe), pa=memory + 8192 * part, nbytes=8192)
        for part, pe in enumerate(others)
        for memory in (sram, tcm)
    ]
    for handle in [torch.submit(message) for message in reads]:
        torch.wait(handle)


def all_reduce(torch: Torch, layout: str) -> object:
    """A collective of all SIPs, by the configured algorithm where it takes the layout."""
    spec = torch.topology
    shape, dp = {
        "one PE": ((3000,), None),
        "a row a cube": ((spec.cubes_per_sip, 700), DPPolicy("row_wise", "replicate", num_pes=1)),
        "a row a PE": ((spec.pes_per_sip, 700), EVERYWHERE),
    }[layout]
    results: dict[int, bytes] = {}

    def rank_program(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        x = torch.full(shape, rank + 1, dtype="f16", dp=dp)
        torch.distributed.all_reduce(x)
        results[rank] = x.numpy().tobytes()
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(rank_program, nprocs=spec.num_sips)
    return results


ALL_REDUCE: tuple[Step, ...] = tuple(
    partial(all_reduce, layout=layout) for layout in ("one PE", "a row a cube", "a row a PE")
)
EVERY_STEP: tuple[Step, ...] = (
    host_copies,
    *(partial(products, dtype=dtype) for dtype in ("f32", "f16", "bf16", "i8", "f8e4m3", "f8e5m2")),
    queues,
    traffic,
    *ALL_REDUCE,
)


def simulated(engine: GraphEngine) -> object:
    """Everything that took time: what was done when, with which bytes, over which links."""
    links = [(*ends, x.nbytes, x.busy_ns, x.peak_fifo_bytes) for ends, x in engine.machine.network.links.items()]
    return engine.now, [_done(record) for record in engine.op_log], links


def _done(record: OpRecord) -> object:
    times = record.t_start_ps, record.t_read_ps, record.t_commit_ps, record.t_end_ps
    moved = [(x.space, x.address, x.nbytes) for x in (record.output, *record.inputs) if isinstance(x, Operand)]
    return record.component, record.kind, times, moved


def consumed(engine: GraphEngine) -> object:
    """The energy of everything, dynamic and static, and the area."""
    machine, area = engine.machine, measure_area(engine.topology)
    assert machine.spec.energy is not None, "the machine has an energy"
    assert area is not None, "and so an area"
    counts = EnergyCounts(machine, machine.spec.energy, machine.log.condense().columns())
    return measure_energy(counts, area, engine.now), area


def events(engine: GraphEngine) -> object:
    """How many events that took."""
    return engine.n_events


def outcomes(
    topology: Topology, ccl: CclConfig, observe: Observe = simulated, steps: Sequence[Step] = EVERY_STEP
) -> Iterator[str]:
    """What each step of the program leaves behind, or what it fails with, as a digest."""
    engine = GraphEngine(topology)
    try:
        with RuntimeContext(engine, ccl=ccl) as torch:
            for step in steps:
                found = step(torch)
                engine.replay()
                yield digest((found, observe(engine)))
    except KernbenchError as error:
        yield digest((type(error).__name__, str(error)))


def digest(value: object) -> str:
    """The same for what is the same."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
