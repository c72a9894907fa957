"""Programs whose numbers are frozen: sums of eighths and whole numbers, which every computer computes alike.

Reports name lines of this file: add at the end of a section, or freeze anew.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import programs
from algorithm_support import Collective, algorithm, all_reduce, small
from cross_support import KINDS, WORLDS

from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryWriteMsg
from kernbench.messages.steps import Chunk, Step, await_message, copy, load, receive, reduce, send, store, zero
from kernbench.observe.op_log_io import write_op_log
from kernbench.observe.sanitizer import Sanitizer
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.triton_emu.schedules import ScheduledKernel

N = programs.N


# --- schedules --------------------------------------------------------------------------------------------------------

ALGORITHMS = {world.name: world for world in WORLDS if world.ranks <= 16}
"""Each on the largest machine of that size that it is tried on."""


def by_algorithm(name: str, dtype: str, *, fewest: bool) -> Collective:
    """A shipped algorithm: kinds of queues, reductions and sizes by turns, on the fewest ranks that have
    to talk, or on many.
    """
    world, turn = ALGORITHMS[name], [*ALGORITHMS].index(name) + len(dtype)
    if fewest:
        world = min(
            (other for other in WORLDS if other.name == name and other.ranks > 1), key=lambda other: other.ranks
        )
    op = world.reductions[turn % len(world.reductions)]
    found = world.collective((5000, 1000, 8, 1)[turn // 2 % 4], dtype, op)
    found.kind = KINDS[turn % 3]
    for shards in found.tensors:
        shards.update({pe: (at, eighths(x)) for pe, (at, x) in shards.items()})
    return found


def eighths(x: Any) -> Any:
    """The array, rounded."""
    return (np.round(x.astype(np.float32) * 8) / 8).astype(x.dtype)


def on_ring(steps: Callable[..., list[Step]], n: int, ranks: int = 4, **more: Any) -> Collective:
    """A schedule of a user on the first PEs of a machine, with ``n`` f32 each."""
    found = all_reduce(
        algorithm("ring_allreduce", "ring_1d", ranks),
        small(),
        lambda pe: (np.arange(n, dtype=np.float32) % 37 - 11 * pe[2] + pe[1]) / 8,
        **more,
    )
    found.kernel = ScheduledKernel(steps)
    found.args = {0: found.kernel.args(n_elem=n, world_size=ranks)}
    return found


def uneven(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """Long messages and short ones in the same slots, one that nobody uses, and ranks that do not all do the same."""
    whole, half = Chunk(0, n_elem), Chunk(n_elem // 2, n_elem // 2)
    steps = [load(0, whole), load(1, half), send("E", 0), send("E", 1), zero(2, n_elem), send("E", 2)]
    steps += [receive("W", n_elem), copy(3, "W"), receive("W", half.size), reduce(1, "W", 1, "max")]
    steps += [await_message("W", n_elem), reduce(0, 3, 0, "sum"), send("E", 1), receive("W", half.size)]
    if rank == 0:
        steps += [reduce(1, 1, "W", "sum")]
    return [*steps, store(0, whole), store(1, half)]


def chain(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """The data of rank 0, from one to the next: all but the ends do the same, one after another."""
    if rank == 0:
        return [load(0, Chunk(0, n_elem)), send("E", 0)]
    got = [receive("W", n_elem), store("W", Chunk(0, n_elem))]
    return [*got, send("E", "W")] if rank < world_size - 1 else got


def mistaken(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """Rank 0 receives another size than it is sent, after it has stored what it was sent first."""
    mine = Chunk(0, n_elem)
    steps = [load(0, mine), send("E", 0), receive("W", n_elem), store("W", mine), send("E", 0)]
    return [*steps, await_message("W", n_elem - 1)] if rank == 0 else [*steps, await_message("W", n_elem)]


def ring(n: int) -> Collective:
    """The shipped all-reduce of a ring of four."""
    return all_reduce(
        algorithm("ring_allreduce", "ring_1d", 4),
        small(),
        lambda pe: (np.arange(n, dtype=np.float32) % 41 + pe[2]) / 8,
    )


def looked_at(n: int, turn: int) -> Collective:
    """A ring whose memory the host looks at in mid-run, when the queues have been used ``turn`` times."""
    found, seen = ring(n), []

    def watch(engine: GraphEngine) -> None:
        def look(_: object) -> None:
            seen.append(1)
            if len(seen) == turn:
                engine.replay()

        engine.machine.hooks.queue.subscribe(look)

    found.watch = watch
    return found


def written_into(n: int, *, at_end: bool) -> Collective:
    """A ring while the host writes into the TCM of a PE: into its scratch, or behind its rings."""
    found, seen = ring(n), []

    def watch(engine: GraphEngine) -> None:
        def once(_: object) -> None:
            seen.append(1)
            if len(seen) == 1:
                base = PhysAddr.pe_tcm_addr(0, 0, 0, 0, 0, engine.machine.addresses.format).encode()
                pa = base + engine.spec.pe.tcm.bytes - 64 if at_end else base + 4096
                # Bytes of small numbers: no element becomes a NaN.
                engine.submit(MemoryWriteMsg(pa=pa, nbytes=64, data=np.arange(64, dtype=np.uint8)))

        engine.machine.hooks.queue.subscribe(once)

    found.watch = watch
    return found


def one_kernel() -> Collective:
    """A schedule of two SIPs, which a kernel plays on the second."""
    world = next(world for world in WORLDS if world.name == "sip_allreduce" and world.ranks == 2)
    found = world.collective(1000, "f16", "sum")
    schedule = found.kernel

    def kernel(*args: Any, tl: Any) -> None:
        schedule(*args, tl=tl)

    for shards in found.tensors:
        shards.update({pe: (at, eighths(x)) for pe, (at, x) in shards.items()})
    found.kernels = {1: kernel}
    return found


def sanitized(run: Collective) -> Collective:
    """The same on an engine whose observer is told of each read."""
    run.observers = (Sanitizer(),)
    return run


def two_rounds(torch: Any) -> None:
    """Ranks reduce twice without looking between, gather beside kernels of their own, and look in the end."""

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        rows = torch.full((2, 700), rank + 1.0, dtype="f16", dp=DPPolicy("row_wise", "replicate", num_pes=1))
        wide, narrow = torch.zeros(150), torch.full((50,), rank + 3.0)
        work = torch.distributed.all_reduce(rows, async_op=True, elementwise=True)
        torch.distributed.all_gather_into_tensor(wide, narrow)
        work.wait()
        torch.distributed.all_reduce(rows)
        torch.ones(300)
        torch.distributed.all_reduce(narrow, "avg", elementwise=True)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=3)


# --- kernels ----------------------------------------------------------------------------------------------------------


def eighths_on_ring(torch: Any, kernel: Callable[..., object], rows: int = 4) -> Any:
    """A kernel on four PEs joined to a ring, each with its rows of the tensor that this returns."""
    plan = torch.install_ipcq(world_size_override=4)
    values = np.arange(4 * rows * N, dtype=np.float32).reshape(4 * rows, N) / 8
    x = torch.tensor(values, dp=programs.ON_EACH)
    try:
        torch.launch(kernel.__name__, kernel, x, rows)
    finally:
        torch.uninstall_ipcq(plan)
    return x


def posts_and_fails(x, rows, *, tl):
    """Receives are posted ahead; one PE fails before it has waited for them all, with stores under way."""
    mine = programs.own(x, tl, rows)
    posted = [tl.recv_async("W", (1, N), "f32") for _ in range(3)]
    tile = tl.load(mine, (1, N), "f32")
    for turn in range(3):
        tl.send("E", programs.busy(tile, turn, tl) + turn)
    tl.store(mine + N * 4, posted[0] + posted[1])
    if tl.program_id(0) == 1:
        raise ZeroDivisionError("before the last one")
    tl.store(mine + 2 * N * 4, posted[2])


def posted_under_failure(torch: Any) -> str:
    """The program goes on with the same queues, and looks at what is left."""
    x = torch.tensor(np.arange(16 * N, dtype=np.float32).reshape(16, N) / 8, dp=programs.ON_EACH)
    plan = torch.install_ipcq(world_size_override=4)
    try:
        torch.launch("posts", posts_and_fails, x, 4)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    if torch.has_data:
        said += f"\nleft {x.numpy().sum()}"
    torch.launch("after", programs.post_receives, x, 4)
    torch.uninstall_ipcq(plan)
    return said


def follows_values(x, rows, *, tl):
    """Messages are asked for their numbers in mid-run; what is loaded next, and how often, depends on them."""
    pe = tl.program_id(0)
    mine = programs.own(x, tl, rows)
    tile = tl.load(mine, (1, N), "f32")
    for turn in range(3):
        tl.send("E", tile + turn)
        got = tl.recv("W", (1, N), "f32")
        row = int(tl.value(got)[0, turn] * 8) % rows
        tile = tile + tl.load(mine + row * N * 4, (1, N), "f32")
        tl.device_print("pe", pe, "row", row, tl.sum(tile))
        tl.store(mine + (turn + 1) * N * 4, tile)
        del got
    while tl.value(tile)[0, 0] < 64:
        tile = tile + tile + 1.0
    tl.store(mine, tile)


def values_in_mid_run(torch: Any) -> str:
    """Their prints, and what they leave."""
    x = eighths_on_ring(torch, follows_values)
    return "\n".join([*map(str, torch.engine.printed()), str(x.numpy().sum())])


def values_unseen(torch: Any) -> None:
    """Prints that nobody asks for until all is over."""
    eighths_on_ring(torch, follows_values)


def order_free(x, y, *, tl):
    """Accesses to the same bytes that nothing orders, of one PE and of four: time decides what memory holds."""
    pe = tl.program_id(0)
    shared = tl.full((8, N), 1.0 + pe, "f32")
    tl.store(x, shared)
    tl.store(y + pe * 4 * N * 4, tl.load(x + pe * N * 4, (4, N), "f32"))
    tl.store(x, tl.full((8, 8), 5.0 + pe, "f32"), strides=(N * 4, 4))
    tl.composite("add", tl.ref(x, (8, N), "f32"), 1.0, out_ptr=y + 8 * N * 4)
    tl.store(x + 2 * N * 4, shared)
    tl.store(y + 15 * N * 4, tl.load(y + 8 * N * 4, (1, N), "f32"))
    found = tl.atomic_add(x + 40 * pe, tl.full((N,), 0.5, "f32"), fetch=True)
    tl.store(y + (4 * pe + 3) * N * 4, found)


def unordered(torch: Any) -> None:
    """Twice, the second time without waiting for the first."""
    x, y = (torch.ones(16, N, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)) for _ in range(2))
    works = [torch.launch(f"turn {turn}", order_free, x, y, async_op=True) for turn in range(2)]
    for work in works:
        work.wait()
    if torch.has_data:
        x[3].tolist()
    torch.launch("last", order_free, y, x)


def files(torch: Any) -> str:
    """The op-log as a file: before numbers were looked at and after, with prints, atomics, composites and fills."""
    x, y = (torch.ones(16, N, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)) for _ in range(2))
    torch.launch("free", order_free, x, y)

    def small_gemm(x, y, *, tl):
        bias = tl.load(x, (N,), "f32")
        tl.composite("gemm", tl.ref(x, (8, 4), "f32"), tl.ref(x, (4, N), "f32"), y, epilogue=[("bias", bias)])
        product = tl.dot(tl.load(x, (8, 8), "f32"), tl.load(y, (8, 8), "f32"))
        tl.device_print("first", product, "of", tl.program_id(0))
        tl.store(x, product, strides=(N * 4, 4))

    torch.launch("gemm", small_gemm, x, y)
    y.copy_(x)
    before = op_log_digest(torch.engine)
    torch.full((9, 9), 3, dtype="i8")
    if torch.has_data:
        x.numpy()
    return "\n".join([before, *map(str, torch.engine.printed()), op_log_digest(torch.engine)])


def files_of_values(torch: Any) -> str:
    """The same where kernels have asked for numbers, so that the log was read in parts."""
    eighths_on_ring(torch, follows_values)
    return op_log_digest(torch.engine)


def op_log_digest(engine: GraphEngine) -> str:
    """Of the op-log as a file. A line of a kernel is its rank among all of them, so that sources may be edited."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.jsonl")
        write_op_log(engine.op_log, path)
        text = path.read_text()
    lines = sorted({int(found) for found in re.findall(r'"line":(\d+)', text)} | {0})
    ranked = re.sub(r'"line":(\d+)', lambda found: f'"line":{lines.index(int(found[1]))}', text)
    return f"{text.count(chr(10))} rows, sha256 {sha256(ranked.encode()).hexdigest()}"


# --- programs by chance -----------------------------------------------------------------------------------------------


def random_program(seed: int) -> Callable[[Any], str]:
    """A program that copies, launches kernels and looks at values by turns, some of it while kernels run."""

    def program(torch: Any) -> str:
        rng = Random(seed)
        plan = torch.install_ipcq(world_size_override=4)
        x, y = (
            torch.tensor(np.arange(16 * N, dtype=np.float32).reshape(16, N) % (7 + turn) / 8, dp=programs.ON_EACH)
            for turn in range(2)
        )
        said, works = [], []
        for turn in range(rng.randint(2, 4)):
            steps = random_steps(rng)
            works.append(torch.launch(f"turn {turn}", random_kernel, x, y, steps, async_op=rng.random() < 0.5))
            what = rng.randrange(6)
            if what == 0:
                said.append(float(x.numpy().max()))
            elif what == 1:
                y.copy_(x)
            elif what == 2:
                x[rng.randrange(16), rng.randrange(8) :] = rng.randrange(9) / 8
            elif what == 3:
                torch.full((3, 5), rng.randrange(9), dtype="i8")
                said.append(y[rng.randrange(16)].tolist()[:3])
        for work in works:
            if work is not None:
                work.wait()
        torch.uninstall_ipcq(plan)
        return "\n".join([*map(str, said), *map(str, torch.engine.printed())])

    return program


def random_steps(rng: Random) -> tuple[tuple[str, int, int], ...]:
    """What a kernel does: a name and two numbers each."""
    return tuple((rng.choice(STEPS), rng.randrange(4), rng.randrange(4)) for _ in range(rng.randint(3, 9)))


STEPS = ("load", "store", "add", "less", "columns", "pass", "posted", "atomic", "tiles", "product", "value", "print")


def random_kernel(x, y, steps, *, tl):
    """Its tile goes from step to step; places of others are written as well, so times decide what is read."""
    pe, row = tl.program_id(0), N * 4
    mine = programs.own(x, tl, 4)
    tile = tl.load(mine, (1, N), "f32")
    for what, i, j in steps:
        near = x + ((pe * i + j) % 4 * 4 + i) * row
        there = y + ((pe + i) % 4 * 4 + j) * row
        if what == "load":
            tile = tl.load(near, (1, N), "f32")
        elif what == "store":
            tl.store(there, tile)
        elif what == "add":
            tile = tl.minimum(tile + tl.load(there, (1, N), "f32"), 64.0)
        elif what == "less":
            tile = tl.maximum(tile - (i + j / 8), -64.0)
        elif what == "columns":
            tl.store(there, tl.load(near, (1, N // 2), "f32", strides=(row, 8)), strides=(row, 8))
        elif what == "print":
            tl.device_print("pe", pe, tl.max(tile))
        elif what in ("pass", "posted"):
            tile = random_message(what, tile, mine + j * row, i, tl)
        else:
            tile = random_update(what, tile, near, there, (i, j), tl)
    tl.store(mine + 3 * row, tile)


def random_message(what, tile, to, i, tl):
    """A tile goes round, waited for at once or posted ahead."""
    if what == "pass":
        tl.send("E", tile)
        return tl.minimum(tl.recv("W", (1, N), "f32"), tile)
    posted = tl.recv_async("W", (1, N), "f32")
    tl.send("E", programs.busy(tile, i * tl.program_id(0), tl))
    tl.store(to, posted)
    return tile


def random_update(what, tile, near, there, numbers, tl):
    """An atomic, a composite, or a step that depends on values."""
    i, j = numbers
    if what == "atomic":
        found = tl.atomic_max(there, tile, fetch=i % 2 == 1)
        return tile if found is None else found
    if what == "tiles":
        epilogue = (("scale", 0.5),) * (i % 2)
        tl.composite("add", tl.ref(near, (1, N), "f32"), tile, there, epilogue=epilogue)
        return tile
    if what == "product":  # of one step along K: sums are rounded in the order of the computer
        tl.composite("gemm", tl.ref(near, (1, 1), "f32"), tl.ref(near + 4, (1, 8), "f32"), there)
        return tl.maximum(tl.minimum(tl.load(there, (1, N), "f32"), 64.0), -64.0)
    return tile + 1.0 if tl.value(tile)[0, j] < 8 else tl.where(tile < 1.0, tile, 1.0)
