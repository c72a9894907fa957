"""What the language forbids, and the scalars it offers."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_pe import DOT_DTYPES, TCM_BASE, FakePe, Memory, site_of

from kernbench.common.dtypes import F16, F32
from kernbench.common.errors import KernelError
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.kernel_run import KernelRun

NO_VALUE = r"a handle: its numbers are in the machine\. tl\.value\(x\) waits"

FORBIDDEN: list[tuple[Callable[..., Any], str]] = [
    (lambda tl, x, m: bool(x), NO_VALUE),
    (lambda tl, x, m: 1 if x > 0 else 2, NO_VALUE),
    (lambda tl, x, m: 0 < x < 1, NO_VALUE),
    (lambda tl, x, m: int(x), NO_VALUE),
    (lambda tl, x, m: float(x), NO_VALUE),
    (lambda tl, x, m: x.item(), NO_VALUE),
    (lambda tl, x, m: list(x), NO_VALUE),
    (lambda tl, x, m: x[0], NO_VALUE),
    (lambda tl, x, m: np.asarray(x), NO_VALUE),
    (lambda tl, x, m: [1, 2][x], NO_VALUE),
    (lambda tl, x, m: max(x, x), NO_VALUE),
    (lambda tl, x, m: x + tl.cast(x, "f16"), "add of f32 and f16: one type is needed; use tl.cast"),
    (lambda tl, x, m: tl.where(x > 0, x, tl.cast(x, "f16")), "where of f32 and f16"),
    (lambda tl, x, m: x + m, r"shapes \(4,\) and \(2, 3\) do not broadcast"),
    (lambda tl, x, m: tl.where(x > 0, m, m), r"shapes \(4,\) and \(2, 3\)"),
    (lambda tl, x, m: x + "1", "'1' is neither a handle nor a number"),
    (lambda tl, x, m: x + None, "None is neither"),
    (lambda tl, x, m: x + np.ones(4, np.float32), "neither a handle nor a number"),
    (lambda tl, x, m: tl.maximum(1, 2), "maximum of 1, 2: one operand at least is a handle"),
    (lambda tl, x, m: tl.where(x > 0, 1, 0), "where of 1, 0: one operand at least"),
    (lambda tl, x, m: tl.where(True, x, x), "True is not a handle"),
    (lambda tl, x, m: tl.cast(x, "i32") + 1.5, "1.5 is not a whole number and the handle is i32"),
    (lambda tl, x, m: (x > 0) + 200, r"200 does not fit i8 \(-128 to 127\)"),
    (lambda tl, x, m: tl.full(2, float("nan"), "i32"), "nan is not a whole number"),
    (lambda tl, x, m: tl.exp(2.0), "exp of 2.0"),
    (lambda tl, x, m: tl.cast(3, "f16"), "3 is not a handle"),
    (lambda tl, x, m: tl.cast(x, "float128"), "unknown dtype 'float128'; there are: f32, f16"),
    (lambda tl, x, m: tl.sum(x, 1), r"axis 1 of a tensor of shape \(4,\): axes are -1 to 0"),
    (lambda tl, x, m: tl.softmax(m, -3), "axis -3"),
    (lambda tl, x, m: tl.trans(x), r"shape \(4,\) has fewer than two axes"),
    (lambda tl, x, m: tl.trans(m, (0, 0)), r"perm \(0, 0\) is not an order of the 2 axes"),
    (lambda tl, x, m: tl.broadcast(m, (2, 4)), r"shapes \(2, 3\) and \(2, 4\)"),
    (lambda tl, x, m: tl.broadcast(m, 3), r"shape \(2, 3\) does not broadcast to \(3,\)"),
    (lambda tl, x, m: tl.zeros((2, 0), "f32"), r"shape \(2, 0\): every axis has at least 1"),
    (lambda tl, x, m: tl.zeros((2, 1.5), "f32"), "a shape is a whole number or a tuple"),
    (lambda tl, x, m: tl.reshape(m, (4, 2)), r"6 elements of shape \(2, 3\) have no shape \(4, 2\)"),
    (lambda tl, x, m: tl.reshape(m, (4, -1)), r"6 elements of shape \(2, 3\) have no shape \(4, -1\)"),
    (lambda tl, x, m: tl.reshape(m, (-1, -1)), "have no shape"),
    (lambda tl, x, m: tl.expand_dims(m, 3), "axis 3 of a tensor"),
    (lambda tl, x, m: x & x, "and of f32: it works on the bits of whole numbers; use tl.cast"),
    (lambda tl, x, m: x << 2, "shl of f32"),
    (lambda tl, x, m: tl.constant([1, 300], "i8"), r"300 does not fit i8 \(-128 to 127\)"),
    (lambda tl, x, m: tl.constant([1.5], "i32"), "a constant of float64 as i32: whole numbers are needed"),
    (lambda tl, x, m: tl.constant("a", "f32"), "'a' is no array of numbers"),
    (lambda tl, x, m: tl.constant([], "f32"), r"shape \(0,\): every axis has at least 1"),
    (lambda tl, x, m: tl.load(x, 4, "f32"), "a pointer is a whole number of bytes, not a handle"),
    (lambda tl, x, m: tl.load([(0, 8)], 4, "f32"), r"runs of 8 bytes in all, for shape \(4,\) of f32, which has 16"),
    (lambda tl, x, m: tl.load([(0, 6), (8, 10)], 4, "f32"), "a run of 6 bytes: it must hold a whole number of f32"),
    (lambda tl, x, m: tl.load([(0, 0), (8, 16)], 4, "f32"), "a run of 0 bytes"),
    (lambda tl, x, m: tl.load([(0, 8, 8)], 4, "f32"), r"a run is \(address, bytes\), not \(0, 8, 8\)"),
    (lambda tl, x, m: tl.load((0, 16), 4, "f32"), r"a run is \(address, bytes\), not 0"),
    (lambda tl, x, m: tl.load([(-4, 16)], 4, "f32"), "a pointer is not negative"),
    (lambda tl, x, m: tl.load([(0, 16)], 4, "f32", valid=2), "it excludes strides and valid"),
    (lambda tl, x, m: tl.store([(0, 12)], x), "runs of 12 bytes in all"),
    (lambda tl, x, m: tl.load(1.0, 4, "f32"), r"not 1\.0 \(float\)"),
    (lambda tl, x, m: tl.load(True, 4, "f32"), "not True"),
    (lambda tl, x, m: tl.load(-4, 4, "f32"), "a pointer is not negative: -4"),
    (lambda tl, x, m: tl.load(0, (4, 4), "f32", strides=4), r"strides \(4,\) do not fit the shape \(4, 4\)"),
    (lambda tl, x, m: tl.load(0, 4, "f32", strides=-4), "a stride is not negative"),
    (
        lambda tl, x, m: tl.load(0, (2, 4), "f16", strides=(16, 1)),
        r"elements of 2 bytes \(f16\) overlap.*pass \(32, 2\)",
    ),
    (lambda tl, x, m: tl.load(0, (4, 4), "f32", valid=4), r"valid \(4,\) does not fit"),
    (lambda tl, x, m: tl.load(0, 4, "f32", valid=5), r"valid \(5,\) is not within the shape \(4,\)"),
    (lambda tl, x, m: tl.load(0, 4, "i8", other=0.5), "0.5 is not a whole number"),
    (lambda tl, x, m: tl.store(0, 4), "4 is not a handle"),
    (lambda tl, x, m: tl.store(0, x, strides=0), "writes one place many times"),
    (lambda tl, x, m: tl.dot(x, m), "dot takes matrices"),
    (lambda tl, x, m: tl.dot(m, m), "inner sizes 3 and 2 differ"),
    (lambda tl, x, m: tl.dot(m, m, None, None, True, True), "trans_a=True, trans_b=True.*inner sizes 2 and 3"),
    (lambda tl, x, m: tl.dot(m, tl.cast(m, "f16").T), "dot of f32 and f16: one type is needed; use tl.cast"),
    (lambda tl, x, m: tl.dot(tl.cast(m, "i32"), tl.cast(m, "i32")), "does not multiply i32 matrices; it does f32, f16"),
    (lambda tl, x, m: tl.dot(m, m, trans_b=True, acc=m), r"acc is \(2, 3\) f32, the result \(2, 2\) f32"),
    (
        lambda tl, x, m: tl.dot(m, m, trans_b=True, acc=tl.zeros((2, 2), "f16"), out_dtype="f32"),
        r"acc is \(2, 2\) f16, the result \(2, 2\) f32",
    ),
    (lambda tl, x, m: tl.dot(m, m, trans_b=True, out_dtype="i32"), "a dot of f32 does not make i32"),
    (lambda tl, x, m: tl.program_id(3), "there is no axis 3: axis 0 counts PEs"),
    (lambda tl, x, m: tl.num_programs(-1), "there is no axis -1"),
    (lambda tl, x, m: tl.num_programs("0"), "'0' is not a whole number"),
    (lambda tl, x, m: tl.cdiv(4, 0), "cdiv divides by 0"),
    (lambda tl, x, m: tl.cdiv(4.0, 2), "4.0 is not a whole number"),
    (lambda tl, x, m: tl.arange(0, 4, 0), "arange with step 0"),
    (lambda tl, x, m: tl.arange(0, x), NO_VALUE),
]


@pytest.mark.parametrize("case", range(len(FORBIDDEN)))
def test_what_is_forbidden_says_so_at_the_kernels_line(case: int) -> None:
    body, message = FORBIDDEN[case]

    def kernel(tl: Any) -> None:
        body(tl, tl.zeros(4, "f32"), tl.zeros((2, 3), "f32"))

    with pytest.raises(KernelError, match=message) as caught:
        FakePe(Memory(1024)).run(kernel)
    assert str(caught.value).startswith(f"{__file__}:{body.__code__.co_firstlineno}")
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "<lambda>")


def test_a_handle_of_another_pe() -> None:
    kept: list[Any] = []

    def first(tl: Any) -> None:
        kept.append(tl.zeros(4, "f32"))
        tl.barrier()

    def second(tl: Any) -> None:
        tl.store(0, kept[0] + 1)

    def third(tl: Any) -> None:
        tl.store(0, kept[0])

    run = KernelRun(first, (), {}, site_of(first), ScratchAllocator(TCM_BASE, 4096))
    run.resume()
    run.resume()
    with pytest.raises(KernelError, match="tl is used outside its kernel"):
        FakePe(Memory(64)).run(second, site=site_of(second, (3, 2, 1)))
    with pytest.raises(KernelError, match="belongs to a kernel on PE 0 of cube 0 of SIP 0; this is PE 3 of cube 2"):
        FakePe(Memory(64)).run(third, site=site_of(third, (3, 2, 1)))
    run.close()
    with pytest.raises(KernelError, match="belongs to an earlier kernel"):
        FakePe(Memory(64)).run(third, site=site_of(third))


def test_a_machine_multiplies_what_it_has_a_rate_for() -> None:
    def kernel(tl: Any) -> None:
        a = tl.zeros((4, 4), "f16")
        tl.dot(a, a)

    assert F16 in DOT_DTYPES
    with pytest.raises(KernelError, match="does not multiply f16 matrices; it does f32; use"):
        FakePe(Memory(64)).run(kernel, site=site_of(kernel, dot_dtypes=(F32,)))


def test_scalars() -> None:
    seen: list[Any] = []

    def kernel(tl: Any) -> None:
        seen.append([tl.program_id(axis) for axis in range(3)])
        seen.append([tl.num_programs(axis) for axis in range(3)])
        seen.append([tl.cdiv(0, 4), tl.cdiv(7, 4), tl.cdiv(8, np.int32(4)), tl.cdiv(-7, 4)])
        seen.append([tl.arange(3), tl.arange(1, 3), tl.arange(0, 9, 4)])
        seen.append([tl.itemsize(name) for name in ("f32", "bfloat16", "f8e4m3")])

    pe = FakePe(Memory(64))
    pe.run(kernel, site=site_of(kernel, (1, 2, 3), (4, 5, 6)))
    assert seen == [[1, 2, 3], [4, 5, 6], [0, 2, 2, -1], [range(3), range(1, 3), range(0, 9, 4)], [4, 2, 1]]
    assert pe.requests == []


def test_a_handle_says_what_it_is() -> None:
    def kernel(tl: Any) -> None:
        x = tl.zeros((2, 3), "f16")
        assert (x.shape, x.dtype, x.nbytes, x.space, x.addr) == ((2, 3), F16, 12, "tcm", TCM_BASE)
        assert repr(x) == "<handle (2, 3) f16 at 0x1000>"
        assert {x: 1}

    FakePe(Memory(64)).run(kernel)
