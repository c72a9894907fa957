"""Ways for a program to fail on a small machine, and what a program may do then: each as a function of a scene."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from machines import run_ranks, working_machine

from compiled import SPREAD
from kernbench.ccl.install import IpcqPlan
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

MACHINE = working_machine(2, "sip.cube_mesh.w=1", SPREAD)
PES = DPPolicy(pe="row_wise", num_cubes=1)
N = 4


@dataclass
class Scene:
    """A context at work, the queues it has installed for raw kernels, and a tensor of four elements on each PE."""

    torch: RuntimeContext
    plan: IpcqPlan | None = None
    tensors: list[Any] = field(default_factory=list)

    def install(self, world_size: int | None = 4) -> None:
        self.plan = self.torch.install_ipcq(world_size_override=world_size)

    def uninstall(self) -> None:
        plan, self.plan = self.plan, None
        if plan is not None:
            self.torch.uninstall_ipcq(plan)

    def values(self, first: int = 0) -> Any:
        self.torch.ahbm.set_device(0)
        tensor = self.torch.tensor(range(first, first + 4 * N), dtype="f32", dp=PES)
        self.tensors.append((tensor, list(range(first, first + 4 * N))))
        return tensor

    def launch(self, kernel: Callable[..., object], **options: Any) -> Any:
        self.install()
        return self.torch.launch(kernel.__name__, kernel, self.values(), N, **options)


# Kernels that fail. Each PE has sent to the next one before, unless the name says otherwise.


def mine(x, tl):
    return x + tl.program_id(0) * N * 4


def greet(x, tl):
    tl.send("E", tl.load(mine(x, tl), N, "f32"))


def raises_at_once(x, n, *, tl):
    if tl.program_id(0) == 1:
        raise ZeroDivisionError
    greet(x, tl)


def raises_after_sending(x, n, *, tl):
    greet(x, tl)
    if tl.program_id(0) == 1:
        raise ZeroDivisionError


def raises_with_work_under_way(x, n, *, tl):
    loaded = tl.load(mine(x, tl), n, "f32")
    tl.send("E", loaded + loaded)
    tl.store(mine(x, tl), loaded)
    if tl.program_id(0) == 1:
        raise ZeroDivisionError
    tl.recv("W", n, "f32")


def receives_in_vain(x, n, *, tl):
    if tl.program_id(0) == 0:
        greet(x, tl)
    tl.recv("E", n, "f32")


def fills_a_queue(x, n, *, tl):
    loaded = tl.load(x, n, "f32")
    for _ in range(9):
        tl.send("E", loaded)


def misses_a_barrier(x, n, *, tl):
    greet(x, tl)
    if tl.program_id(0):
        tl.barrier()
    else:
        tl.recv("E", n, "f32")


def posts_a_receive(x, n, *, tl):
    tl.recv_async("W", n, "f32")


def receives_another_size(x, n, *, tl):
    greet(x, tl)
    tl.recv("W", 2 * n, "f32")


def runs_out_of_scratch(x, n, *, tl):
    greet(x, tl)
    kept = [tl.zeros((65536,), "f32") for _ in range(1000 * (tl.program_id(0) == 2))]
    tl.recv("W", n, "f32")
    kept.clear()


def leaves_its_tensor(x, n, *, tl):
    greet(x, tl)
    if tl.program_id(0) == 2:
        tl.load(x + (1 << 30), n, "f32")
    tl.recv("W", n, "f32")


def is_interrupted(x, n, *, tl):
    greet(x, tl)
    if tl.program_id(0) == 2:
        raise KeyboardInterrupt
    tl.recv("W", n, "f32")


def leaves_a_message(x, n, *, tl):
    if tl.program_id(0) == 0:
        greet(x, tl)


KERNELS = {
    ZeroDivisionError: (raises_at_once, raises_after_sending, raises_with_work_under_way),
    "IpcqDeadlock": (receives_in_vain, fills_a_queue, misses_a_barrier, posts_a_receive),
    "KernelError": (receives_another_size,),
    "AllocationError": (runs_out_of_scratch,),
    "AddressFaultError": (leaves_its_tensor,),
    KeyboardInterrupt: (is_interrupted,),
}


def launched(kernel: Callable[..., object]) -> Callable[[Scene], None]:
    return lambda scene: scene.launch(kernel)


# Programs that fail.


def one_sip_of_two(scene: Scene) -> None:
    """A launch on both SIPs: one raises, the other waits for it."""

    def kernel(x, *, tl):
        if tl.program_id(2) == 0:
            raise ZeroDivisionError
        tl.recv("E", N, "f32")

    scene.install(None)
    scene.torch.launch("k", kernel, on_both_sips(scene.torch))


def other_sip_of_two(scene: Scene) -> None:
    """One SIP has sent to the other, which has raised."""

    def kernel(x, *, tl):
        if tl.program_id(2) == 1:
            raise ZeroDivisionError
        tl.send("E", tl.load(x, N, "f32"))

    scene.install(None)
    scene.torch.launch("k", kernel, on_both_sips(scene.torch))


def on_both_sips(torch: RuntimeContext) -> list[Any]:
    made = []
    for sip in (0, 1):
        torch.ahbm.set_device(sip)
        made.append(torch.ones(N))
    return made


def told_by_a_read(scene: Scene) -> None:
    """Nobody waits for the launch but who reads its tensor."""
    scene.launch(raises_with_work_under_way, async_op=True)
    scene.tensors.pop()[0].numpy()


def told_by_a_removal(scene: Scene) -> None:
    scene.launch(receives_in_vain, async_op=True)
    scene.uninstall()


def interrupted(scene: Scene) -> None:
    """By the user, in the program itself, with work under way that somebody could still wait for."""
    scene.values()
    raise KeyboardInterrupt


def compares_wrongly(scene: Scene) -> None:
    scene.torch.testing.assert_close(scene.values(), np.full(4 * N, -1.0, np.float32))
    assert not scene.torch.testing.comparisons[-1].passed
    raise AssertionError


def of_ranks(program: Callable[[RuntimeContext, int], object]) -> Callable[[Scene], None]:
    return lambda scene: run_ranks(scene.torch, lambda rank: program(scene.torch, rank)) and None


def peer_raises(torch, rank):
    tensor = torch.ones(N)
    if rank:
        for _ in range(5):
            tensor.numpy()
        raise ValueError
    torch.distributed.send(tensor, 1)


def peer_raises_in_its_kernel(torch, rank):
    def kernel(x, *, tl):
        tl.send("global_E", tl.load(x, N, "f32"))
        if rank:
            raise ZeroDivisionError

    torch.launch("k", kernel, torch.ones(N))


def peer_never_joins(torch, rank):
    if rank == 0:
        torch.distributed.all_reduce(torch.ones(N))


def calls_differ(torch, rank):
    torch.distributed.all_reduce(torch.ones(N + rank))


def rank_is_interrupted(torch, rank):
    if rank:
        raise KeyboardInterrupt
    torch.distributed.barrier()


def rank_exits(torch, rank):
    if rank:
        raise SystemExit("enough")
    torch.distributed.barrier()


# Programs that fail nowhere and leave something behind.


def nobody_receives(torch, rank):
    if rank == 0:
        torch.distributed.send(torch.ones(N), 1)


def nobody_waits(torch, rank):
    torch.distributed.all_reduce(torch.ones(4096), async_op=True)


def nobody_joins_nor_waits(torch, rank):
    if rank == 0:
        torch.distributed.all_reduce(torch.ones(N), async_op=True)


def never_destroys(scene: Scene) -> None:
    """What it leaves is told when the next program takes the queues off."""
    torch = scene.torch

    def program(rank):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        nobody_receives(torch, rank)

    torch.multiprocessing.spawn(program, nprocs=2)
    scene.install()
    scene.uninstall()


def raw_message_left(scene: Scene) -> None:
    scene.launch(leaves_a_message)
    scene.uninstall()


def removed_under_a_kernel(scene: Scene) -> None:
    """The queues go when the kernels have ended that were there before."""

    def slow(x, n, *, tl):
        for _ in range(20):
            tl.wait(tl.load(x, n, "f32"))
        pass_on(x, n, tl=tl)

    scene.launch(slow, async_op=True)
    scene.uninstall()
    x, before = scene.tensors.pop()
    assert x.tolist() == before[-N:] + before[:-N]


FAILURES: dict[str, tuple[object, Callable[[Scene], None]]] = {
    **{kernel.__name__: (error, launched(kernel)) for error, kernels in KERNELS.items() for kernel in kernels},
    **{p.__name__: (ZeroDivisionError, p) for p in (one_sip_of_two, other_sip_of_two, told_by_a_read)},
    "told_by_a_removal": ("IpcqDeadlock", told_by_a_removal),
    "interrupted": (KeyboardInterrupt, interrupted),
    "compares_wrongly": (AssertionError, compares_wrongly),
    **{
        p.__name__: ("SpawnException", of_ranks(p))
        for p in (peer_raises, peer_raises_in_its_kernel, calls_differ, rank_exits)
    },
    "peer_never_joins": ("IpcqDeadlock", of_ranks(peer_never_joins)),
    "rank_is_interrupted": (KeyboardInterrupt, of_ranks(rank_is_interrupted)),
    "nobody_receives": ("IpcqError", of_ranks(nobody_receives)),
    "nobody_waits": (None, of_ranks(nobody_waits)),
    "nobody_joins_nor_waits": ("IpcqDeadlock", of_ranks(nobody_joins_nor_waits)),
    "raw_message_left": ("IpcqError", raw_message_left),
    "removed_under_a_kernel": (None, removed_under_a_kernel),
    "never_destroys": ("IpcqError", never_destroys),
}
"""What goes wrong, by name: the error that comes out (its class, or its name; None: none), and the program."""


# What may come after. Each checks what it computes.


def pass_on(x, n, *, tl):
    tl.send("E", tl.load(mine(x, tl), n, "f32"))
    tl.store(mine(x, tl), tl.recv("W", n, "f32"))


def collectives(scene: Scene) -> None:
    torch = scene.torch
    scene.uninstall()

    def program(rank):
        reduced, sent = torch.full((8,), rank + 1), torch.full((N,), rank + 1)
        torch.distributed.all_reduce(reduced)
        if rank:
            torch.distributed.recv(sent, 0)
        else:
            torch.distributed.send(sent, 1)
        torch.distributed.barrier()
        return reduced.tolist(), sent.tolist()

    assert run_ranks(torch, program) == [([3] * 8, [1] * N)] * 2


def another_launch(scene: Scene) -> None:
    def add_one(x, n, *, tl):
        at = mine(x, tl)
        tl.store(at, tl.load(at, n, "f32") + 1.0)

    x = scene.values(100)
    scene.torch.launch("add_one", add_one, x, N)
    assert x.tolist() == [*range(101, 101 + 4 * N)]
    scene.tensors.pop()


def the_same_queues(scene: Scene) -> None:
    """Without installing anew, where there are queues between the PEs."""
    if scene.plan is None or scene.plan.world_size != 4:
        scene.uninstall()
        scene.install()
    rotate(scene, 200)


def queues_anew(scene: Scene) -> None:
    scene.uninstall()
    scene.install()
    rotate(scene, 300)
    scene.uninstall()


def rotate(scene: Scene, first: int) -> None:
    x = scene.values(first)
    scene.torch.launch("pass_on", pass_on, x, N)
    values = [*range(first, first + 4 * N)]
    assert x.tolist() == values[-N:] + values[:-N]
    scene.tensors.pop()


def reads(scene: Scene) -> None:
    for tensor, values in scene.tensors:
        assert tensor.tolist() == values
    assert scene.torch.ones(3).tolist() == [1, 1, 1]


def cleaning_up(scene: Scene) -> None:
    assert scene.torch.cleanup().leaked == ()
    scene.plan = None
    scene.tensors.clear()
    another_launch(scene)


def nothing(scene: Scene) -> None:
    """The end of the context."""


AFTERMATHS = {
    p.__name__: p for p in (collectives, another_launch, the_same_queues, queues_anew, reads, cleaning_up, nothing)
}


def everything(torch: RuntimeContext) -> list[Any]:
    """One after the other; what it took, relative to the beginning."""
    begin = torch.engine.now
    scene = Scene(torch)
    for step in (collectives, another_launch, the_same_queues, queues_anew):
        step(scene)
    return [(each.phase, round(each.t_start_ns - begin, 3), each.total_ns, each.pe_exec_ns) for each in torch.traces]


def remains(engine: GraphEngine) -> list[str]:
    """What a program has left on the machine."""
    left = [f"memory of {pe}" for pe, memory in engine.used_allocators.items() if memory.hbm.live or memory.tcm.live]
    for part in engine.machine.components:
        if part.node.kind == "pe_mmu" and part.table.mappings:
            left.append(f"mappings in {part.node.id}")
        if part.node.kind == "pe_ipcq" and part.queue_pairs:
            left.append(f"queues of {part.node.id}")
    with suppress(StopIteration):
        left.append(f"record {next(iter(engine.op_log.open_records))}")
    return left
