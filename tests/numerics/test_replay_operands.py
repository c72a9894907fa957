"""Operands as arrays of a store: in place where their bytes lie together, and right everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from engine_support import launch, place, two_cubes
from kernbench.common.dtypes import F32
from kernbench.core.op_log import Operand
from kernbench.engine.engine import GraphEngine
from kernbench.numerics.memory import GRANULE_BYTES, MemoryStore
from kernbench.numerics.operands import OperandMemory
from kernbench.triton_emu.tl_context import TLContext as Tl

FOUR = np.arange(4, dtype=np.float32)


def at(address: int, **layout) -> Operand:
    return Operand("tcm", (0, 0, 0), address, 16, (4,), F32, **layout)


def test_a_private_array_stays_and_another_is_memory_itself() -> None:
    store = MemoryStore()
    memory, x = OperandMemory(store), at(64)
    memory.deposit(x, FOUR)
    before, now = memory.load(x, private=True), memory.load(x, private=False)
    store.write("tcm", 64, -FOUR)
    assert before.tolist() == FOUR.tolist()
    assert now.tolist() == memory.load(x, private=False).tolist() == (-FOUR).tolist()


def test_a_hole_reads_as_zeros_until_it_is_written() -> None:
    store = MemoryStore()
    memory, x = OperandMemory(store), at(64)
    assert memory.load(x, private=False).tolist() == [0] * 4
    store.write("tcm", 64, FOUR)
    assert memory.load(x, private=False).tolist() == FOUR.tolist()


def test_equal_operands_are_the_same_bytes() -> None:
    memory = OperandMemory(MemoryStore())
    for value in range(3):
        memory.deposit(at(64), FOUR + value)
        assert memory.load(at(64), private=False).tolist() == (FOUR + value).tolist()


def test_operands_that_are_gone_leave_nothing_behind() -> None:
    """New operands may be where old ones were in the host's memory."""
    memory = OperandMemory(MemoryStore())
    for n in range(300):
        memory.deposit(at(16 * n), FOUR + n)
    assert all(memory.load(at(16 * n), private=False)[0] == n for n in range(300))


@pytest.mark.parametrize(
    ("address", "layout"),
    [(GRANULE_BYTES - 8, {}), (64, {"segments": ((64, 8), (256, 8))}), (64, {"valid": (4,)}), (64, {"strides": (12,)})],
    ids=["across extents", "segments", "valid", "strides"],
)
def test_other_layouts_come_back(address: int, layout) -> None:
    store = MemoryStore()
    for granule in (0, 1):
        store.write("tcm", granule * GRANULE_BYTES + 1000, FOUR)
    memory, x = OperandMemory(store), at(address, **layout)
    for value in (FOUR, -FOUR):
        memory.deposit(x, value)
        assert memory.load(x, private=False).tolist() == memory.load(x, private=True).tolist() == value.tolist()


def test_reads_of_unwritten_bytes_are_reported_each_time() -> None:
    seen: list[tuple[str, int, int]] = []
    memory = OperandMemory(MemoryStore(lambda *what: seen.append(what)))
    x = at(64)
    memory.load(x, private=False)
    memory.load(x, private=True)
    memory.deposit(x, FOUR)
    memory.load(x, private=False)
    assert seen == [("tcm", 64, 16)] * 2


def test_the_log_has_one_operand_for_all_uses_of_an_array() -> None:
    engine = GraphEngine(two_cubes())
    x = place(engine, np.ones((8, 8), np.float32))

    def kernel(p: int, *, tl: Tl) -> None:
        a = tl.load(p, (8, 8), "f32")
        tl.store(p, a * a + a)

    launch(engine, kernel, x)
    used = [operand for r in engine.op_log for operand in (*r.inputs, r.output) if isinstance(operand, Operand)]
    arrays = [operand for operand in used if operand.space == "tcm"]
    assert len(arrays) == 8
    assert len({id(operand) for operand in arrays}) == len(set(arrays))
