"""Programs whose simulation is frozen. Reports name lines of this file: add at the end of a section, or freeze anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.ccl.diagnostics import pointer_dump
from kernbench.policy.placement.dp import DPPolicy

N = 64
"""Elements of a tile of the queue kernels, f32."""
ON_EACH = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
"""A row on each of the first four PEs of cube 0."""
ON_BOTH_CUBES = DPPolicy("row_wise", "row_wise")


# --- queues -----------------------------------------------------------------------------------------------------------


def own(x, tl, rows=1):
    """Where the rows of this PE begin."""
    return x + tl.program_id(0) * rows * N * 4


def busy(x, n, tl):
    """A tile after ``2 n`` operations that leave it as it is."""
    for _ in range(n):
        x = tl.abs(x * 1.0)
    return x


def on_ring(torch: Any, kernel: Callable[..., object], *args: Any, rows: int = 4) -> None:
    """A kernel on four PEs joined to a ring, each with its rows of one tensor."""
    plan = torch.install_ipcq(world_size_override=4)
    values = np.arange(4 * rows * N, dtype=np.float32).reshape(4 * rows, N)
    x = torch.tensor(values, dp=ON_EACH)
    torch.launch(kernel.__name__, kernel, x, rows, *args)
    x.numpy()
    torch.uninstall_ipcq(plan)


def pass_on(x, rows, *, tl):
    """Each PE sends its tile to the next, and keeps the sum of its own and what comes."""
    tile = tl.load(own(x, tl, rows), (rows, N), "f32")
    tl.send("E", tile)
    tl.store(own(x, tl, rows), tl.recv("W", (rows, N), "f32") + tile)


def forward(x, rows, *, tl):
    """What is received is sent on out of its slot, three times round, and added up."""
    mine = tl.load(own(x, tl, rows), (rows, N), "f32")
    total = mine
    tl.send("E", mine)
    for turn in range(3):
        tile = tl.recv("W", (rows, N), "f32")
        if turn < 2:
            tl.send("E", tile)
        total = total + tile
        del tile
    tl.store(own(x, tl, rows), total)


def receive_any(x, rows, *, tl):
    """PE 0 takes from both sides, as tiles come or, late, of those that are there; its neighbours differ in pace."""
    pe = tl.program_id(0)
    mine = own(x, tl, rows)
    tile = tl.load(mine, (1, N), "f32")
    if pe == 0:
        for row in range(8):
            got = tl.recv(None, (1, N), "f32")
            tl.store(mine + row * N * 4, got)
            del got
            if row in (0, 3):
                tl.wait(busy(tile, 60, tl))
    elif pe == 2:
        tl.send("E", tile)
        tl.send("W", busy(tile, 9, tl))
    else:
        out, back = ("W", "E") if pe == 1 else ("E", "W")
        for turn in range(3):
            tl.send(out, busy(tile, pe + turn, tl) + turn)
        tl.send(out, tl.recv(back, (1, N), "f32"))


def fill_slots(x, rows, count, work, *, tl):
    """More messages than slots, to a slow receiver; the last comes back."""
    if tl.program_id(0) == 0:
        tile = tl.load(x, (1, N), "f32")
        for _ in range(count):
            tl.send("E", tile)
        tl.store(x, tl.recv("E", (1, N), "f32"))
    elif tl.program_id(0) == 1:
        for turn in range(count):
            tile = tl.recv("W", (1, N), "f32")
            tl.wait(busy(tile, work, tl))
            if turn == count - 1:
                tl.send("W", tile)
            del tile


def wrap_ring(x, rows, *, tl):
    """Messages of different sizes wrap a ring of three slots while two are held."""
    mine = own(x, tl, rows)
    held: list[Any] = []
    for turn in range(11):
        n = 4 + turn * 5
        tl.send("E", tl.load(mine, n, "f32"))
        held.append(tl.recv("W", n, "f32"))
        if len(held) == 3:
            held.pop(0)
    tl.store(mine, held[0])
    tl.store(mine + 256, held[1])


def copy_messages(x, rows, *, tl):
    """Sources in memory and in TCM, windows; messages copied to scratch, to an address in TCM and to memory."""
    mine = own(x, tl, rows)
    tile = tl.load(mine, (1, N), "f32")
    tl.send("E", tile)
    tl.send("E", tl.ref(mine + N * 4, (1, N), "f32"))
    tl.store(mine, tl.recv("W", (1, N), "f32", dst_space="tcm"))
    tl.recv("W", (1, N), "f32", dst_space="hbm", dst_addr=mine + N * 4)
    tl.send("E", src_addr=mine + 2 * N * 4, nbytes=N * 4)
    room = tl.zeros((1, N), "f32")
    tl.recv("W", N, "f32", dst_space="tcm", dst_addr=room.addr)
    tl.send("E", src_addr=tile.addr, shape=N, dtype="f32", space="tcm")
    tl.store(mine + 2 * N * 4, tl.recv("W", N, "f32"))
    tl.store(mine + 3 * N * 4, room)


def post_receives(x, rows, *, tl):
    """Receives are posted ahead, and waited for in another order."""
    mine = own(x, tl, rows)
    posted = [tl.recv_async("W", (1, N), "f32") for _ in range(3)]
    tile = tl.load(mine, (1, N), "f32")
    for turn in range(3):
        tl.send("E", busy(tile, 3 * tl.program_id(0) + turn, tl))
    tl.wait(posted[2])
    tl.store(mine, posted[1] + posted[0])
    tl.store(mine + N * 4, posted[2])


def across_cubes(torch: Any) -> None:
    """A ring of all PEs of two cubes, and one of PEs on every SIP, one after the other."""
    plan = torch.install_ipcq(world_size_override=16)
    x = torch.tensor(np.arange(16 * N, dtype=np.float32).reshape(16, N), dp=ON_BOTH_CUBES)

    def kernel(x, n, *, tl):
        at = x + (tl.program_id(1) * 8 + tl.program_id(0)) * n * 4
        tl.send("W", tl.load(at, n, "f32"))
        tl.store(at, tl.recv("E", n, "f32"))

    torch.launch("shift", kernel, x, N)
    torch.uninstall_ipcq(plan)
    plan = torch.install_ipcq()
    made = []
    for sip in torch.devices.selected:
        torch.ahbm.set_device(sip)
        made.append(torch.full((N,), sip + 1.0))
    torch.launch("exchange", kernel_of_sips, made, N)
    for each in made:
        each.numpy()
    torch.uninstall_ipcq(plan)


def kernel_of_sips(x, n, *, tl):
    """SIPs exchange, the second later than the first."""
    tile = busy(tl.load(x, n, "f32"), 20 * tl.program_id(2), tl)
    for _ in range(3):
        tl.send("E", tile)
    for _ in range(3):
        tl.store(x, tl.recv("W", n, "f32"))


def leave_messages(torch: Any) -> None:
    """A message that a later launch receives, and one that nobody does."""
    plan = torch.install_ipcq(world_size_override=4)
    x = torch.ones(4, N, dp=ON_EACH)

    def first(x, *, tl):
        tile = tl.load(own(x, tl), N, "f32")
        tl.send("E", tile)
        tl.send("E", tile)

    def second(x, *, tl):
        tl.store(own(x, tl), tl.recv("W", N, "f32") + 1)

    torch.launch("first", first, x)
    torch.launch("second", second, x)
    torch.uninstall_ipcq(plan)


def sram_messages(torch: Any) -> None:
    """Messages out of SRAM and into it, by addresses that the program gives."""
    plan = torch.install_ipcq(world_size_override=4)
    x = torch.tensor(np.arange(4 * N, dtype=np.float32).reshape(4, N), dp=ON_EACH)

    def kernel(x, sram, *, tl):
        own_sram = sram + tl.program_id(0) * N * 4
        tl.send("E", tl.load(own(x, tl), N, "f32"))
        tl.recv("W", N, "f32", dst_space="sram", dst_addr=own_sram)
        tl.send("E", src_addr=own_sram, shape=N, dtype="f32", space="sram")
        tl.store(own(x, tl), tl.recv("W", N, "f32"))

    torch.launch("sram", kernel, x, torch.engine.cube_allocator(0, 0).alloc_sram(4 * N * 4).encode())
    x.numpy()
    torch.uninstall_ipcq(plan)


# --- barriers and ranks -----------------------------------------------------------------------------------------------


def meet(x, *, tl):
    """Three barriers with unequal work between them."""
    at = x + (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * N * 4
    tile = tl.load(at, N, "f32")
    for turn in range(3):
        tile = busy(tile, (tl.program_id(0) * 3 + turn) % 5, tl)
        tl.store(at, tile)
        tl.barrier()
    tl.store(at, tile + tl.load(at, N, "f32"))


def barriers(torch: Any) -> None:
    """On two cubes."""
    torch.launch("meet", meet, torch.ones(16, N, dp=ON_BOTH_CUBES))


def run_ranks(torch: Any, program: Callable[[int], object]) -> None:
    """A process group of a rank for each SIP."""

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        program(rank)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=torch.topology.num_sips)


def collectives(torch: Any) -> None:
    """Every collective once, over all layouts of tensors that ranks have."""
    dist = torch.distributed

    def program(rank: int) -> None:
        world = dist.get_world_size()
        x = torch.full((8, 100), rank + 1.0, dp=DPPolicy(pe="row_wise", num_cubes=1))
        dist.barrier()
        for op in ("sum", "max", "avg"):
            dist.all_reduce(x, op, elementwise=True)
        dist.broadcast(x, 0)
        dist.reduce(x, world - 1)
        wide, narrow = torch.zeros(world * 50), torch.full((50,), rank + 3.0)
        dist.all_gather_into_tensor(wide, narrow)
        dist.reduce_scatter_tensor(narrow, wide)
        dist.all_to_all_single(wide, wide.clone())
        parts = [torch.zeros(50) for _ in range(world)]
        dist.all_gather(parts, narrow)
        if rank == 0:
            dist.send(narrow, 1)
        else:
            dist.recv(narrow, 0)
        work = dist.all_reduce(narrow, async_op=True, elementwise=True)
        torch.zeros(3000)
        work.wait()
        dist.barrier()
        narrow.numpy()

    run_ranks(torch, program)


def configured_all_reduce(torch: Any) -> None:
    """By what ccl.yaml says: a row for each cube."""

    def program(rank: int) -> None:
        x = torch.full((2, 700), rank + 1.0, dtype="f16", dp=DPPolicy("row_wise", "replicate", num_pes=1))
        torch.distributed.all_reduce(x)
        x.numpy()

    run_ranks(torch, program)


def ranks_with_kernels(torch: Any) -> None:
    """Ranks launch kernels of their own, copy, and wait for each other by turns."""

    def program(rank: int) -> None:
        x = torch.ones(16, N, dp=ON_BOTH_CUBES)
        for turn in range(2 + rank):
            torch.launch(f"meet {turn}", meet, x, async_op=turn % 2 == 1)
            torch.distributed.cooperative_yield()
        torch.accelerator.synchronize()
        x[3:5] = rank
        torch.distributed.barrier()

    run_ranks(torch, program)


# --- the host ---------------------------------------------------------------------------------------------------------


def host_fills(torch: Any) -> None:
    """Constants of all kinds, everywhere at once and on one PE."""
    for dp in (None, ON_BOTH_CUBES, DPPolicy("replicate", "row_wise")):
        torch.zeros(16, 300, dp=dp)
        torch.ones(16, 300, dtype="f16", dp=dp).fill_(3)
        torch.full((16, 33), 7, dtype="i8", dp=dp).zero_()
        torch.full((16, 1000), -1.5, dtype="bf16", dp=dp)


def host_copies(torch: Any) -> None:
    """Host to device and back, device to device on one SIP and from one to the other, whole and in part."""
    shape = rows, columns = 2 * torch.topology.pes_per_sip, 40
    x = torch.tensor(np.arange(rows * columns, dtype=np.float32).reshape(shape), dp=ON_BOTH_CUBES)
    y = torch.empty(*shape, dp=DPPolicy("replicate", "column_wise"))
    y.copy_(x)
    torch.ahbm.set_device(1)
    z = torch.zeros_like(x)
    z.copy_(y)
    y.copy_(np.ones(shape, np.float32))
    z[3:7, 5:9] = 4
    z[2] = torch.from_numpy(np.arange(columns, dtype=np.float32))
    z.numpy()
    z.cpu()
    y[1, 2:30].tolist()
    x[5, 5].item()
    z.clone().reshape(2 * rows, columns // 2).numpy()
    torch.arange(100, dtype="i32")
    torch.manual_seed(3)
    torch.randn(*shape, dtype="f16", dp=ON_BOTH_CUBES).free()
    assert bool((x == x.numpy()).all())


def copies_between_slices(torch: Any) -> None:
    """A launch that copies between all slices of a SIP at once."""

    def kernel(x, y, n, *, tl):
        me = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tiles = [tl.load(x + (me * 5 + turn * 3) % 16 * n * 4, n, "f32") for turn in range(4)]
        for turn, tile in enumerate(tiles):
            tl.store(y + (me + turn) % 16 * n * 4 + turn * n, tile, valid=n // 4)

    x = torch.tensor(np.arange(16 * 900, dtype=np.float32).reshape(16, 900), dp=ON_BOTH_CUBES)
    y = torch.zeros(16, 900, dp=ON_BOTH_CUBES)
    torch.launch("mix", kernel, x, y, 900)


# --- kernels on one PE ------------------------------------------------------------------------------------------------

ROW = 4 * N


def order_bytes(x, y, *, tl):
    """Write, read, overwrite of the same and of neighbouring bytes; rows that interleave; a composite in between."""
    five = tl.full((8, N), 5.0, "f32")
    tl.store(x, five)
    tl.store(y, tl.load(x, (8, N), "f32"))
    tl.store(x + 4 * ROW, tl.load(y, (2, N), "f32"))
    tl.store(x, tl.full((8, 8), 1.0, "f32"), strides=(ROW, 4))
    tl.load(x + 32, (8, 8), "f32", strides=(ROW, 4))
    tl.load(x + 16, (8, 8), "f32", strides=(ROW, 4))
    tl.composite("add", tl.ref(x, (8, N), "f32"), 1.0, out_ptr=y + 8 * ROW)
    tl.store(y + 15 * ROW, tl.load(y + 8 * ROW, (1, N), "f32"))
    tl.store(x, tl.full((1, N), 9.0, "f32"))
    tl.barrier()
    tl.load(x, (1, N), "f32")


def order_range(x, y, *, tl):
    """Columns of many rows in two places, which are compared by the ranges that enclose them."""
    tl.store(x, tl.exp(tl.load(y, (100, 1), "f32", strides=(ROW, 4))), strides=(ROW, 4))
    tl.load(x + 4, (100, 1), "f32", strides=(ROW, 4))
    tl.load(x, (50, 2), "f32", strides=(2 * ROW, 4))
    tl.store(x + 8, tl.full((100, 1), 2.0, "f32"), strides=(ROW, 4))


def memory_order(torch: Any) -> None:
    """On one PE; the ranges on a tensor of which two PEs have half."""
    halves = DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)
    x, y = torch.ones(16, N), torch.ones(16, N)
    torch.launch("bytes", order_bytes, x, y)
    wide = torch.ones(100, N, dp=halves)
    other = torch.ones(100, N)
    torch.launch("range", order_range, wide, other)
    for each in (x, y, wide):
        each.numpy()


def composites(torch: Any) -> None:
    """Every staging with every epilogue, sizes that do not divide, and elementwise ones."""
    m, k, n = 40, 70, 36
    for dtype in ("f16", "f32", "i8"):
        a, b = (torch.tensor(np.arange(r * c).reshape(r, c) % 7, dtype=dtype) for r, c in ((m, k), (k, n)))
        plain, other = ("i32", "f16") if dtype == "i8" else (dtype, "f32")
        bias, more = torch.ones(n, dtype=plain), torch.ones(m, n, dtype=plain)
        c, d = torch.empty(m, n, dtype=plain), torch.empty(m, n, dtype=other)
        for variant in ("ref_ref", "load_ref", "ref_load", "load_load"):
            for steps in ((), ("bias", "relu"), ("scale", "gelu"), ("add", "silu")):
                to = d if dtype == "i8" and steps and steps[1] != "relu" else c
                name = f"{variant} {'+'.join(steps)}"
                torch.launch(name, gemm_by_tiles, a, b, bias, more, to, m, k, n, dtype, to.dtype, name)
        c.numpy()


def gemm_by_tiles(a, b, bias, more, c, m, k, n, dtype, out, what, *, tl):
    """A composite GEMM: ``what`` says which operands are loaded, and the epilogue."""
    variant, steps = what.split(" ")
    left, right = variant.split("_")
    wide = "i32" if dtype == "i8" else dtype
    x = (tl.load if left == "load" else tl.ref)(a, (m, k), dtype)
    w = (tl.load if right == "load" else tl.ref)(b, (k, n), dtype)
    given = {"bias": (tl.ref(bias, n, wide),), "add": (tl.load(more, (m, n), wide),), "scale": (0.5,)}
    epilogue = [(step, *given.get(step, ())) for step in steps.split("+") if step]
    tl.composite("gemm", x, w, c, epilogue=epilogue, out_dtype=out)


def elementwise_composites(torch: Any) -> None:
    """Unary, binary and ternary, of refs, handles and numbers, with strides."""

    def kernel(x, y, out, *, tl):
        rows, columns = 30, 50
        a, b = tl.ref(x, (rows, columns), "f32"), tl.ref(y, (rows, columns), "f32")
        tl.composite("exp", a, out)
        tl.composite("add", a, tl.load(y, (rows, columns), "f32"), out)
        tl.composite("fma", a, b, 2.0, out)
        tl.composite("maximum", a, 0.5, out, out_dtype="f32", epilogue=(("scale", 2.0),))
        tl.composite("sub", a, b, x)
        turned = tl.ref(y, (columns, rows), "f32", strides=(4, 4 * columns))
        tl.composite("abs", turned, out, out_strides=(4 * rows, 4))

    x, y = (torch.tensor(np.arange(1500, dtype=np.float32).reshape(30, 50) / 1500) for _ in range(2))
    out = torch.empty(30, 50)
    torch.launch("elementwise", kernel, x, y, out)
    out.numpy()


def language(torch: Any) -> str:
    """Most of what a kernel can say, once."""

    def kernel(x, y, n, *, tl):
        a = tl.load(x, (n, n), "f32", valid=(n - 3, n - 1), other=1.0)
        b = tl.load(x + 4 * n, (n, n // 2), "f32", strides=(4 * n, 8))
        i = tl.iota((n, n), "i32")
        mask = i <= tl.iota((n, 1), "i32", axis=0)
        c = tl.where(mask, a, 0.0) + tl.softmax(a) * tl.sigmoid(a) - tl.rsqrt(tl.abs(a) + 1.0)
        d = tl.dot(tl.cast(c, "f16"), tl.cast(b, "f16"), out_dtype="f32")
        d = tl.dot(tl.cast(a, "f16"), tl.cast(b, "f16"), acc=d, trans_a=True)
        e = tl.maximum(tl.sum(c, axis=0, keepdims=True), tl.max(c)) / 3.0
        f = tl.clamp(tl.fma(c, c, c), -2.0, 2.0) + tl.broadcast(e, (n, n)) + tl.trans(a)
        tl.device_print("sum", tl.sum(d), n)
        tl.store(y, f, valid=(n, n - 2))
        tl.store(y + 4 * (n - 2), tl.full((n, 2), 3.0, "f32"), strides=(4 * n, 4))

    n = 24
    x = torch.tensor(np.linspace(-2, 2, 2 * n * n, dtype=np.float32).reshape(2 * n, n))
    y = torch.empty(n, n)
    torch.launch("language", kernel, x, y, n)
    y.numpy()
    return "\n".join(map(str, torch.engine.printed()))


def shipped_kernels(torch: Any) -> None:
    """Those that no bench runs."""
    split = DPPolicy(pe="row_wise", num_cubes=1)
    rows, columns = 20, 96
    x = torch.tensor(np.linspace(-1, 1, rows * columns, dtype=np.float32).reshape(rows, columns), dp=split)
    y, weight = torch.empty(rows, columns, dp=split), torch.ones(columns, dp=DPPolicy(pe="replicate", num_cubes=1))
    n = rows * columns
    torch.launch("softmax", "softmax", x, y, rows, columns, "f32", block=64)
    torch.launch("layernorm", "layernorm", x, weight, None, y, rows, columns, "f32")
    torch.launch("rmsnorm", "rmsnorm", x, weight, y, rows, columns, "f32", block=64)
    torch.launch("add", "add", x, y, y, n, "f32", block=100)
    torch.launch("silu_mul", "silu_mul", x, y, y, n, "f32")
    torch.launch("elementwise", "elementwise", "gelu", x, None, None, y, n, "f32")
    torch.launch("composite", "elementwise_composite", "sub", x, y, None, y, rows, columns, "f32")
    a, b, c = torch.ones(40, 70, dtype="f16"), torch.ones(70, 36, dtype="f16"), torch.empty(40, 36, dtype="f16")
    torch.launch("gemm", "gemm", a, b, c, 40, 70, 36, "f16", 16, 32, 24, acc_dtype="f32")
    y.numpy()
    c.numpy()


def scratch(torch: Any) -> None:
    """Scratch that fills up and is waited for."""

    def kernel(x, n, *, tl):
        total = tl.zeros((n,), "f32")
        for _ in range(70):
            total = total + tl.load(x, (n,), "f32")
        tl.store(x, total)

    x = torch.ones(65536)
    torch.launch("stream", kernel, x, 65536)
    x.numpy()


# --- launches, failures, ends -----------------------------------------------------------------------------------------


def add_one(x, n, *, tl):
    """A kernel that works a little."""
    at = x + tl.program_id(0) * n * 4
    tl.store(at, busy(tl.load(at, n, "f32"), 4, tl) + 1.0)


def launches(torch: Any) -> None:
    """One after another on the same PEs, waited for or not, on some PEs, and with copies in between."""
    x, y = torch.zeros(4, N, dp=ON_EACH), torch.zeros(N)
    for turn in range(3):
        torch.launch(f"blocking {turn}", add_one, x, N)
    under_way = [torch.launch(f"async {turn}", add_one, (x, y)[turn % 2], N, async_op=True) for turn in range(5)]
    y.copy_(np.ones(N, np.float32))
    torch.zeros(500)
    for work in reversed(under_way):
        work.wait()
    torch.launch("unwaited", add_one, x, N, async_op=True)


def raises_on_one(x, rows, *, tl):
    """One PE fails with work under way; its neighbours wait for it."""
    tile = tl.load(own(x, tl, rows), N, "f32")
    tl.send("E", tile + tile)
    tl.store(own(x, tl, rows), tile)
    if tl.program_id(0) == 1:
        raise ZeroDivisionError("on one PE")
    tl.recv("W", N, "f32")


def waits_in_vain(x, rows, *, tl):
    """A circle of receives."""
    if tl.program_id(0) == 0:
        tl.send("E", tl.load(x, N, "f32"))
    tl.recv("E", N, "f32")


def fills_a_queue(x, rows, *, tl):
    """More messages than slots, and nobody receives."""
    tile = tl.load(own(x, tl, rows), N, "f32")
    for _ in range(9):
        tl.send("E", tile)


def misses_a_barrier(x, rows, *, tl):
    """One PE receives instead."""
    if tl.program_id(0):
        tl.barrier()
    else:
        tl.recv("E", N, "f32")


def receives_another_size(x, rows, *, tl):
    """A message that is half as long as what is received."""
    tl.send("E", tl.load(own(x, tl, rows), N // 2, "f32"))
    tl.recv("W", N, "f32")


def runs_out_of_scratch(x, rows, *, tl):
    """On one PE."""
    kept = [tl.zeros((65536,), "f32") for _ in range(1000 * (tl.program_id(0) == 2))]
    tl.store(own(x, tl, rows), tl.full(N, 1.0 + len(kept), "f32"))


def leaves_its_tensor(x, rows, *, tl):
    """An address that nothing is at."""
    tl.load(own(x, tl, rows), N, "f32")
    if tl.program_id(0) == 2:
        tl.load(x + (1 << 30), N, "f32")


def failing(kernel: Callable[..., object]) -> Callable[[Any], str]:
    """The kernel fails; the program says how, and goes on with one that does not."""

    def program(torch: Any) -> str:
        plan = torch.install_ipcq(world_size_override=4)
        x = torch.ones(4, N, dp=ON_EACH)
        try:
            torch.launch(kernel.__name__, kernel, x, 1)
        except Exception as error:
            said = f"{type(error).__name__}: {error}\ncause: {error.__cause__!r}\n{pointer_dump(torch.engine)}"
        torch.launch("after", pass_on, x, 1)
        x.numpy()
        torch.uninstall_ipcq(plan)
        return said

    return program


def uncaught(torch: Any) -> None:
    """The program ends with the kernel's failure."""
    on_ring(torch, raises_on_one, rows=1)


def deadlocked(torch: Any) -> None:
    """The program ends with the report of a deadlock."""
    on_ring(torch, waits_in_vain, rows=1)


def cancelled(torch: Any) -> None:
    """The program fails while launches are under way, and others are waiting behind them."""
    x = torch.ones(4, N, dp=ON_EACH)
    for turn in range(3):
        torch.launch(f"async {turn}", add_one, x, N, async_op=True)
    torch.engine.run_until(torch.engine.now + 600)
    raise ValueError("enough")


def rank_fails(torch: Any) -> None:
    """A rank raises; the other one waits for it."""

    def program(rank: int) -> None:
        x = torch.ones(N)
        torch.launch("add", add_one, x, N, async_op=True)
        if rank == 1:
            x.numpy()
            raise ValueError("rank 1 has enough")
        torch.distributed.recv(x, 1)

    run_ranks(torch, program)


def rank_never_joins(torch: Any) -> None:
    """A collective that one rank does not call."""

    def program(rank: int) -> None:
        if rank == 0:
            torch.distributed.all_reduce(torch.ones(N))

    run_ranks(torch, program)


def races(torch: Any) -> str:
    """What the sanitizer is for: unwritten bytes, PEs that do not wait for each other, a message left."""
    plan = torch.install_ipcq(world_size_override=4)

    def kernel(x, y, *, tl):
        tile = tl.load(own(x, tl), N, "f32")
        tl.store(y, tile)
        tl.send("E", tile)
        tl.load(x, N, "f32")

    torch.launch("race", kernel, torch.empty(4, N, dp=ON_EACH), torch.zeros(N))
    try:
        torch.uninstall_ipcq(plan)
    except Exception as error:
        lost = f"{type(error).__name__}: {error}"
    return "\n".join([*map(str, torch.engine.observers[0].findings(torch.engine)), lost])
