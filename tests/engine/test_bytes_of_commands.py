"""What a run with data keeps of a command until phase 2 has seen it: the command, its operands and their places."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine_support import launch, place, two_cubes
from kernbench.engine.engine import GraphEngine

VALUES = np.arange(64, dtype=np.float32).reshape(4, 16)


def chain(x: Any, n: int, *, tl: Any) -> None:
    """Each command works on the result of the one before, whose scratch comes back."""
    a = b = tl.load(x, (4, 16), "f32")
    for _ in range(n):
        a = a + b


def held(x: Any, n: int, *, tl: Any) -> None:
    """Each result stays, so that each operand has an address of its own: the most that a command takes."""
    made = [tl.load(x, (4, 16), "f32")]
    for _ in range(n):
        made.append(made[-1] + made[0])


def along_axes(x: Any, n: int, *, tl: Any) -> None:
    """Commands with parameters."""
    a = tl.load(x, (4, 16), "f32")
    for _ in range(n // 2):
        tl.sum(a, axis=1)
        tl.softmax(a)


def loads(x: Any, n: int, *, tl: Any) -> None:
    """Each result stays, and lies at an address of its own."""
    made = [tl.load(x + 64 * (i % 4), (1, 16), "f32") for i in range(n)]
    assert len(made) == n


def stores(x: Any, n: int, *, tl: Any) -> None:
    for i in range(n // 2):
        tl.store(x + 64 * (i % 4), tl.load(x, (1, 16), "f32"))


def dots(x: Any, n: int, *, tl: Any) -> None:
    """Products of which each adds to the one before."""
    a = tl.load(x, (4, 16), "f32")
    b, total = tl.trans(a), tl.zeros((4, 4), "f32")
    for _ in range(n):
        total = tl.dot(a, b, total)


def atomics(x: Any, n: int, *, tl: Any) -> None:
    a = tl.load(x, (4, 16), "f32")
    for _ in range(n):
        tl.atomic_add(x, a)


def bytes_kept(kernel: Callable[..., object], n: int) -> int:
    """The bytes that come back when the log lets go of the commands."""
    engine = GraphEngine(two_cubes())
    x = place(engine, VALUES)
    launch(engine, kernel, x, n)
    whats = engine.machine.log.whats
    assert len(whats) > n
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    whats.clear()
    gc.collect()
    return before - tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize(
    "kernel", [chain, held, along_axes, loads, stores, dots, pytest.param(atomics, marks=pytest.mark.slow)]
)
def test_a_command_takes_at_most_400_bytes(kernel: Callable[..., object]) -> None:
    tracemalloc.start()
    try:
        few, many = bytes_kept(kernel, 50), bytes_kept(kernel, 250)
    finally:
        tracemalloc.stop()
    assert 100 < (many - few) / 200 <= 400
