"""What dots that add to each other's results take on the skewed machine: what stays in the matrix unit costs no TCM.

All dots are of one tile: 24 x 40 by 40 x 56 of f16, so 6400 bytes of operands, and 5376 bytes of f32 to add to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_times_of_engines import PS, READ_GBS, SCHEDULER_NS, WRITE_GBS, Ran, lasted

RESULT = 24 * 56 * 4
OPERANDS = 6400 / READ_GBS
MULTIPLY = 24 * 40 * 56 / 3700
ADDED = RESULT / READ_GBS
"""What an accumulator that lies in TCM adds to the fetch"""
STORE = RESULT / WRITE_GBS


def operands(tl: Any) -> tuple[Any, Any]:
    return tl.zeros((24, 40), "f16"), tl.zeros((40, 56), "f16")


def chain(*, tl: Any) -> None:
    a, b = operands(tl)
    acc = tl.dot(a, b, out_dtype="f32")
    acc = tl.dot(a, b, acc)
    acc = tl.dot(a, b, acc)


def two_chains(*, tl: Any) -> None:
    a, b = operands(tl)
    x, y = tl.dot(a, b, out_dtype="f32"), tl.dot(a, b, out_dtype="f32")
    for _ in range(2):
        x = tl.dot(a, b, x)
        y = tl.dot(a, b, y)


def read_by_math(*, tl: Any) -> None:
    a, b = operands(tl)
    first = tl.dot(a, b, out_dtype="f32")
    tl.dot(a, b, first)
    tl.exp(first)


def held_by_the_kernel(*, tl: Any) -> None:
    a, b = operands(tl)
    first = tl.dot(a, b, out_dtype="f32")
    second = tl.dot(a, b, first)
    tl.wait(second)
    tl.exp(first)


def reshaped(*, tl: Any) -> None:
    """A view of the same bytes is another matrix."""
    a, b = operands(tl)
    first = tl.dot(a, b, out_dtype="f32")
    tl.dot(tl.zeros((48, 40), "f16"), tl.zeros((40, 28), "f16"), tl.reshape(first, (48, 28)))


def added_to_twice(*, tl: Any) -> None:
    a, b = operands(tl)
    first = tl.dot(a, b, out_dtype="f32")
    tl.dot(a, b, first)
    tl.dot(a, b, first)


def dots(kernel: Callable[..., object], acc_bytes: int) -> tuple[list[float], list[float], float]:
    """The fetches and the stores of a kernel, and the time from the start of its first dot to the end of its last."""
    ran = Ran(kernel, overrides=(f"pe.gemm.acc_bytes={acc_bytes}",))
    whole = [record for record in ran.of_part("pe_gemm") if record.name == "dot"]
    fetches, stores = ([lasted(each) for each in ran.stages("pe_fetch_store", kind)] for kind in ("fetch", "store"))
    return fetches, stores, max(each.t_end for each in whole) - whole[0].t_start


def test_what_fits_is_neither_fetched_nor_stored_until_the_end() -> None:
    """Three dots, one after another, and a store."""
    fetches, stores, time = dots(chain, RESULT)
    assert fetches == pytest.approx([OPERANDS] * 3, abs=PS)
    assert stores == pytest.approx([STORE], abs=PS)
    assert time == pytest.approx(3 * (SCHEDULER_NS + OPERANDS + MULTIPLY) + STORE, abs=10 * PS)


@pytest.mark.parametrize("acc_bytes", [RESULT - 1, 0])
def test_what_does_not_fit_goes_to_tcm(acc_bytes: int) -> None:
    fetches, stores, time = dots(chain, acc_bytes)
    assert fetches == pytest.approx([OPERANDS, OPERANDS + ADDED, OPERANDS + ADDED], abs=PS)
    assert stores == pytest.approx([STORE] * 3, abs=PS)
    assert time == pytest.approx(3 * (SCHEDULER_NS + OPERANDS + MULTIPLY + STORE) + 2 * ADDED, abs=12 * PS)


@pytest.mark.parametrize(("acc_bytes", "in_tcm"), [(2 * RESULT, 0), (2 * RESULT - 1, 1), (RESULT - 1, 4)])
def test_chains_share_the_place(acc_bytes: int, in_tcm: int) -> None:
    """Two chains of three that alternate, and end in TCM. If there is place for one, the first has it until its last
    dot begins; the other stores and fetches its first result, and then has the place."""
    fetches, stores, _ = dots(two_chains, acc_bytes)
    assert sorted(fetches) == pytest.approx([OPERANDS] * (6 - in_tcm) + [OPERANDS + ADDED] * in_tcm, abs=PS)
    assert len(stores) == 2 + in_tcm


@pytest.mark.parametrize("kernel", [read_by_math, held_by_the_kernel])
def test_what_has_another_use_is_stored(kernel: Callable[..., object]) -> None:
    fetches, stores, _ = dots(kernel, 2 * RESULT)
    assert fetches == pytest.approx([OPERANDS, OPERANDS + ADDED], abs=PS)
    assert stores == pytest.approx([STORE] * 2, abs=PS)


def test_two_dots_that_add_to_one_result_fetch_it() -> None:
    fetches, stores, _ = dots(added_to_twice, 3 * RESULT)
    assert fetches == pytest.approx([OPERANDS, OPERANDS + ADDED, OPERANDS + ADDED], abs=PS)
    assert len(stores) == 3


def test_a_view_is_another_matrix() -> None:
    """48 x 28: two tiles of 24 x 28, each with half of the bytes to add to."""
    fetches, stores, _ = dots(reshaped, 2 * RESULT)
    half = ((24 * 40 + 40 * 28) * 2 + RESULT // 2) / READ_GBS
    assert fetches == pytest.approx([OPERANDS, half, half], abs=PS)
    assert len(stores) == 3


def test_a_chain_of_another_kernel_finds_the_place_free() -> None:
    def both(*, tl: Any) -> None:
        chain(tl=tl)
        chain(tl=tl)

    fetches, stores, _ = dots(both, 2 * RESULT)
    assert fetches == pytest.approx([OPERANDS] * 6, abs=PS)
    assert len(stores) == 2
