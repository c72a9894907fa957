"""Scratch: a handle's memory goes back when the handle is gone and the commands that use it are done."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fake_pe import TCM_BASE, FakePe, Memory, site_of

from kernbench.common.dtypes import F32
from kernbench.common.errors import AllocationError, KernelError
from kernbench.messages.commands import LOAD, PRINT, AwaitSpace, Command, in_tcm
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.handles import Handle, HandleView, Slot
from kernbench.triton_emu.issuer import CommandMaker
from kernbench.triton_emu.kernel_run import KernelRun

KIB = 1024


def start(function: Any, nbytes: int = 4 * KIB) -> tuple[KernelRun, ScratchAllocator]:
    scratch = ScratchAllocator(TCM_BASE, nbytes)
    return KernelRun(function, (), {}, site_of(function), scratch), scratch


def test_memory_goes_back_when_both_handle_and_commands_are_done() -> None:
    def kernel(tl: Any) -> None:
        x = tl.load(0, 16, "f32")
        tl.store(64, x)
        del x
        tl.store(128, tl.zeros(4, "i8"))

    run, scratch = start(kernel)
    load = run.resume()
    assert isinstance(load, Command)
    assert load.op is LOAD
    run.resume()  # the store
    run.resume()  # the zeros: x is gone, its load and store are under way
    assert len(scratch.live()) == 2
    run.completed(0)
    assert len(scratch.live()) == 2
    run.completed(1)
    assert [size for _, size in scratch.live()] == [4]
    run.close()
    assert [size for _, size in scratch.live()] == [4]  # the command that makes it is under way
    run.completed(2)
    assert scratch.live() == ()


def test_memory_of_a_live_handle_stays_when_its_commands_are_done() -> None:
    def kernel(tl: Any) -> None:
        x = tl.load(0, 16, "f32")
        tl.barrier()
        del x
        tl.barrier()

    run, scratch = start(kernel)
    run.resume()
    run.completed(0)
    run.resume()
    assert len(scratch.live()) == 1
    run.resume()
    assert scratch.live() == ()


def test_an_operand_used_twice_by_one_command() -> None:
    def kernel(tl: Any) -> None:
        x = tl.load(0, 4, "f32")
        x = x * x
        tl.store(0, x)

    memory = Memory(64)
    memory.view(0, (4,), site_of(kernel).dot_dtypes[0])[...] = 3
    FakePe(memory).run(kernel)
    assert (memory.view(0, (4,), site_of(kernel).dot_dtypes[0]) == 9).all()


def test_a_full_scratch_waits_for_what_will_be_given_back() -> None:
    def kernel(tl: Any) -> None:
        for i in range(20):
            tl.store(i * KIB, tl.load(i * KIB, KIB, "i8") + 1)

    pe = FakePe(Memory(20 * KIB), scratch_bytes=4 * KIB, order=7)
    pe.run(kernel)
    waits = [r for r in pe.requests if isinstance(r, AwaitSpace)]
    assert waits
    assert all(r.nbytes == KIB and r.line for r in waits)
    assert (pe.memory.raw == 1).all()


def test_a_scratch_that_stays_full_says_who_holds_it() -> None:
    def kernel(tl: Any) -> None:
        held = [tl.load(0, (16, 16), "f32") for _ in range(3)]
        held.append(tl.zeros((16, 32), "f16"))

    with pytest.raises(AllocationError) as caught:
        FakePe(Memory(4096), scratch_bytes=3 * KIB + 512).run(kernel)
    first = kernel.__code__.co_firstlineno
    text = str(caught.value)
    assert f"{__file__}:{first + 2}: scratch is full: asked for 1024 bytes" in text
    assert "512 bytes are free" in text
    assert re.search(rf"3072 bytes  3 x load \(16, 16\) f32 at line {first + 1}$", text, re.M)
    assert caught.traceback[-1].lineno == first + 1


def test_scratch_in_pieces_is_told_from_scratch_that_is_used_up() -> None:
    def kernel(tl: Any) -> None:
        held = [tl.zeros(KIB, "i8") for _ in range(4)]
        del held[2], held[0]
        tl.zeros(2 * KIB, "i8")

    with pytest.raises(AllocationError, match="2048 bytes are free but in pieces"):
        FakePe(Memory(64), scratch_bytes=4 * KIB).run(kernel)


def test_a_kernel_may_catch_and_go_on() -> None:
    def kernel(tl: Any) -> None:
        with pytest.raises(AllocationError):
            tl.zeros(8 * KIB, "i8")
        with pytest.raises(KernelError):
            tl.zeros(0, "i8")
        tl.store(0, tl.full(4, 7, "i8"))

    memory = Memory(64)
    pe = FakePe(memory, scratch_bytes=4 * KIB)
    pe.run(kernel)
    assert [c.serial for c in pe.commands] == [0, 1]
    assert bytes(memory.raw[:4]) == b"\7\7\7\7"


def test_what_comes_late_after_the_end_is_harmless() -> None:
    kept: list[Any] = []

    def kernel(tl: Any) -> None:
        kept.append(tl.zeros(4, "i8"))

    run, scratch = start(kernel)
    run.resume()
    assert run.resume() is None
    run.close()
    run.completed(0)
    kept.clear()
    assert scratch.live() == ()


class Bytes:
    def __init__(self, address: int, freed: list[int]) -> None:
        self.address = address
        self.freed = freed
        self.turn = 0

    def free(self) -> None:
        self.freed.append(self.address)


class Ring:
    def __init__(self) -> None:
        self.freed: list[int] = []

    def free(self, slot: Slot, /) -> None:
        self.freed.append(slot.address)

    def slot(self, address: int) -> Slot:
        return Slot("W", "tcm", (0, 0, 0), address, self, sequence=0)


def new_maker() -> CommandMaker:
    return CommandMaker(site_of(new_maker), ScratchAllocator(TCM_BASE, KIB))


COMMAND = Command(PRINT, "print", 0, 1, (), ())


def handle(place: Any) -> Handle:
    owner: Any = None
    return Handle(owner, in_tcm((0, 0, 0), 0, (4,), F32), place)


def test_bytes_go_back_when_neither_a_handle_nor_a_command_has_them() -> None:
    freed: list[int] = []
    maker = new_maker()
    a, b = handle(Bytes(1, freed)), handle(Bytes(2, freed))
    maker.under_way[0] = (COMMAND, (a,))
    maker.under_way[1] = (COMMAND, (b, a))
    del a
    del maker.under_way[0]
    assert maker.will_free_memory()
    assert freed == []
    del maker.under_way[1]
    assert freed == [1]
    assert not maker.will_free_memory()
    del b
    assert freed == [1, 2]


def test_a_view_holds_the_handle_that_it_is_of() -> None:
    freed: list[int] = []
    maker = new_maker()
    a = handle(Bytes(1, freed))
    view = HandleView(HandleView(a, (2, 2)), (4, 1))
    assert view.base is a
    maker.under_way[0] = (COMMAND, (view,))
    del a
    assert not maker.will_free_memory()
    del view
    assert maker.will_free_memory()
    assert freed == []
    del maker.under_way[0]
    assert freed == [1]


def test_a_command_that_uses_a_view_of_a_message_keeps_its_slot() -> None:
    ring, maker = Ring(), new_maker()
    slot = ring.slot(1)
    maker.add_slot(slot)
    maker.under_way[0] = (COMMAND, (HandleView(handle(slot), (2, 2)),))
    maker.finish()
    assert ring.freed == []
    del maker.under_way[0]
    assert ring.freed == [1]


def test_a_handle_that_outlives_its_kernel_holds_no_message() -> None:
    ring, maker = Ring(), new_maker()
    slots = [ring.slot(address) for address in (1, 2, 2)]
    for slot in slots:
        maker.add_slot(slot)
    idle, used, again = map(handle, slots)
    maker.under_way[0] = (COMMAND, (used, used))
    maker.under_way[1] = (COMMAND, (used,))
    maker.under_way[2] = (COMMAND, (again,))
    assert not maker.will_free_memory()
    maker.finish()
    assert ring.freed == [1]
    del maker.under_way[0]
    assert ring.freed == [1]
    del maker.under_way[1]
    assert ring.freed == [1, 2]
    next_kernels = handle(slots[0])
    del idle, used, again
    assert ring.freed == [1, 2]
    del maker.under_way[2]
    assert ring.freed == [1, 2, 2]
    del next_kernels
    assert ring.freed == [1, 2, 2, 1]
    assert not any(slot.is_held for slot in slots)


def test_slots_of_posted_receives_are_forgotten_once_they_are_back() -> None:
    ring, maker = Ring(), new_maker()
    held = handle(ring.slot(0))
    maker.add_slot(held.place)
    for address in range(1, 5000):
        slot = ring.slot(address)
        maker.add_slot(slot)
        assert handle(slot).place is slot
    assert held.place in maker.slots
    assert len(maker.slots) < 2000
