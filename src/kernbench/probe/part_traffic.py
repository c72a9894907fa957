"""A small machine, and programs that use every kind of part of it and know what has to come out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

SMALL_MACHINE = (
    "sip.cube_mesh={w: 2, h: 1}",
    "cube.noc.w=2",
    "cube.noc.h=2",
    "cube.pe_layout={pe_per_corner: 1, corners: [NW, SE]}",
    "cube.hbm.slices=2",
)
"""The default machine with SIPs of two cubes of two PEs"""
EVERYWHERE = DPPolicy("row_wise", "row_wise")

Torch: TypeAlias = RuntimeContext[Any]


def every_program(torch: Torch) -> Iterator[str]:
    """All of the traffic, one program after another; they say what has come out wrong."""
    for program in (host_copies, kernels, collective, raw_accesses):
        yield from program(torch)


def host_copies(torch: Torch) -> Iterator[str]:
    """Copies both ways to all PEs, and fills by the device."""
    values = np.arange(4 * 300, dtype=np.float32).reshape(4, 300)
    x = torch.tensor(values, dp=EVERYWHERE, name="x")
    ones = torch.full((4, 700), 1.0, dp=EVERYWHERE)
    yield from _differing("bytes that were copied to HBM and back", x.numpy(), values)
    yield from _differing("bytes that the device has filled", ones.numpy(), np.ones((4, 700)))


def multiply(x_ptr: int, w_ptr: int, streamed_ptr: int, staged_ptr: int, n: int, *, tl: Any) -> None:
    """A product of several tiles, streamed; the same of what lies in TCM, and math on it."""
    tl.composite("gemm", tl.ref(x_ptr, (n, n), "f32"), tl.ref(w_ptr, (n, n), "f32"), streamed_ptr, out_dtype="f32")
    a, b = tl.load(x_ptr, (n, n), "f32"), tl.load(w_ptr, (n, n), "f32")
    tl.barrier()
    tl.store(staged_ptr, tl.dot(a, b, out_dtype="f32") * 2 + 1)


def double(x_ptr: int, n: int, *, tl: Any) -> None:
    """Twice the row of the PE."""
    row = x_ptr + 4 * n * (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))
    tl.store(row, tl.load(row, (n,), "f32") * 2)
    tl.barrier()


def kernels(torch: Torch, n: int = 40) -> Iterator[str]:
    """A product on one PE, and a kernel on all of a SIP."""
    values = (np.arange(n * n) % 5).astype(np.float32).reshape(n, n)
    x, w = torch.tensor(values), torch.tensor(values)
    streamed, staged = torch.empty(n, n, dtype="f32"), torch.empty(n, n, dtype="f32")
    torch.launch("multiply", multiply, x, w, streamed, staged, n)
    yield from _differing("a streamed product", streamed.numpy(), values @ values)
    yield from _differing("a product in TCM", staged.numpy(), values @ values * 2 + 1)
    rows = np.arange(4 * n, dtype=np.float32).reshape(4, n)
    shared = torch.tensor(rows, dp=EVERYWHERE)
    torch.launch("double", double, shared, n)
    yield from _differing("what all PEs have doubled", shared.numpy(), rows * 2)


def collective(torch: Torch) -> Iterator[str]:
    """An all-reduce between all SIPs, through queues."""
    n_sips, shape, found = torch.topology.num_sips, (torch.topology.cubes_per_sip, 700), {}

    def rank_program(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        x = torch.full(shape, rank + 1, dtype="f32", dp=DPPolicy("row_wise", "replicate", num_pes=1))
        torch.distributed.all_reduce(x)
        found[rank] = x.numpy()
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(rank_program, nprocs=n_sips)
    total = shape[0] * n_sips * (n_sips + 1) / 2
    for rank in range(n_sips):
        yield from _differing(f"an all-reduce on rank {rank}", found[rank], np.full(shape, total))


def raw_accesses(torch: Torch) -> Iterator[str]:
    """PEs and the host read and write HBM, SRAM and the TCM of another, all at once: only times come of it."""
    for handle in [torch.submit(message) for message in _accesses(torch)]:
        torch.wait(handle)
    yield from ()


def _accesses(torch: Torch) -> Iterator[HostMsg]:
    spec, fmt = torch.topology, AddressFormat(torch.topology.address.format)
    size, last_cube, last_sip = spec.cube.hbm.bytes_per_slice, spec.cubes_per_sip - 1, spec.num_sips - 1
    far = PhysAddr.pe_hbm_addr(0, 0, last_cube, 0, 0, size, fmt).encode()
    sram = PhysAddr.cube_sram_addr(0, 0, last_cube, 0, fmt).encode()
    tcm_of = (0, last_cube, spec.pes_per_cube - 1)
    tcm = PhysAddr.pe_tcm_addr(0, *tcm_of, 0, fmt).encode()
    away = PhysAddr.pe_hbm_addr(0, last_sip, 0, 0, 0, size, fmt).encode()
    for cube, pe in product(range(spec.cubes_per_sip), range(spec.pes_per_cube)):
        dma = partial(PeDmaMsg, pe=(0, cube, pe))
        yield dma(pa=far, nbytes=20_000)
        yield dma(pa=far + 8, nbytes=24, op="write", repeat=6, outstanding=3, stride_bytes=1300)
        yield dma(pa=sram, nbytes=5_000)
        yield dma(pa=sram, nbytes=3_000, op="write")
        yield dma(pa=away, nbytes=6_000, op="write")
        if (0, cube, pe) != tcm_of:
            yield dma(pa=tcm, nbytes=2_000)
    yield MemoryReadMsg(pa=away, nbytes=9_000)
    yield fill_of(torch)


def fill_of(torch: Torch) -> HostMsg:
    """The M_CPU of the first cube fills some of its HBM."""
    spec, fmt = torch.topology, AddressFormat(torch.topology.address.format)
    pa = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 0, spec.cube.hbm.bytes_per_slice, fmt).encode()
    return MemoryWriteMsg(pa=pa, nbytes=5_000, pattern=b"x")


def _differing(what: str, found: Any, expected: Any) -> Iterator[str]:
    wrong = np.flatnonzero(np.ravel(np.asarray(found) != expected))
    if wrong.size:
        at = int(wrong[0])
        values = np.ravel(found)[at], np.ravel(expected)[at]
        yield f"{what}: {wrong.size:,} elements are wrong, the first at {at}: {values[0]:g} instead of {values[1]:g}"
