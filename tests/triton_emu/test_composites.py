"""``tl.ref``, ``tl.composite`` and ``tl.iota``: values, what is issued, what is forbidden."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_pe import TCM_BASE, FakePe, Memory, random_array, site_of
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import ALL, BF16, F8E4M3, F16, F32, I8, I32, DType
from kernbench.common.errors import KernelError
from kernbench.messages.commands import (
    GEMM,
    TILED_MATH,
    Command,
    Epilogue,
    MemoryRef,
    Operand,
)
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.kernel_run import KernelRun

OUT = 8192
RNG = np.random.default_rng(0)
A, B = random_array(RNG, (5, 7), F16), random_array(RNG, (7, 3), F16)
BIAS, MORE = random_array(RNG, (3,), F16), random_array(RNG, (5, 3), F16)


def memory_with(*arrays: Any) -> Memory:
    """``arrays``, 1024 bytes apart."""
    memory = Memory(1 << 14)
    for at, array in enumerate(arrays):
        memory.put(1024 * at, array)
    return memory


def run(body: Callable[[Any], Any], *arrays: Any, order: int | None = None) -> FakePe:
    def kernel(tl: Any) -> None:
        assert body(tl) is None

    pe = FakePe(memory_with(*arrays), order=order)
    pe.run(kernel)
    return pe


def product() -> Any:
    return A.astype(np.float32) @ B.astype(np.float32)


@pytest.mark.parametrize("staged", [(), ("a",), ("b",), ("a", "b")])
@pytest.mark.parametrize("order", [None, 3])
def test_a_gemm_of_handles_and_refs(staged: tuple[str, ...], order: int | None) -> None:
    def body(tl: Any) -> None:
        a = (tl.load if "a" in staged else tl.ref)(0, (5, 7), "f16")
        b = (tl.load if "b" in staged else tl.ref)(1024, (7, 3), "f16")
        tl.composite("gemm", a, b, OUT)

    pe = run(body, A, B, order=order)
    assert np.array_equal(pe.memory.view(OUT, (5, 3), F16), product().astype(np.float16))
    composite = pe.commands[-1]
    assert composite.op is GEMM
    assert isinstance(composite.a, Operand if "a" in staged else MemoryRef)
    assert isinstance(composite.b, Operand if "b" in staged else MemoryRef)


@pytest.mark.parametrize(
    "spelled",
    [
        lambda tl, a, b, steps: tl.composite("gemm", a=a, b=b, out_ptr=OUT, epilogue=steps),
        lambda tl, a, b, steps: tl.composite(op="gemm", b=b, a=a, out_ptr=OUT, epilogue=steps),
        lambda tl, a, b, steps: tl.composite("gemm", a, b=b, out_ptr=OUT, epilogue=steps),
        lambda tl, a, b, steps: tl.composite("gemm", a, b, OUT, steps),
        lambda tl, a, b, steps: tl.composite("gemm", a, b, OUT, list(steps)),
    ],
)
def test_a_gemm_may_name_its_operands_and_end_with_its_epilogue(spelled: Callable[..., None]) -> None:
    def body(tl: Any) -> None:
        spelled(tl, tl.ref(0, (5, 7), "f16"), tl.ref(1024, (7, 3), "f16"), (("scale", 2.0),))

    found = run(body, A, B).memory.view(OUT, (5, 3), F16)
    assert np.array_equal(found, (2 * product()).astype(np.float16))


def test_strided_operands_and_results() -> None:
    def body(tl: Any) -> None:
        a = tl.ref(0, (5, 7), "f16")
        transposed = tl.ref(1024, (7, 3), "f16", strides=(2, 14))
        tl.composite("gemm", a, transposed, out_ptr=OUT, out_strides=(20, 4))

    pe = run(body, A, np.ascontiguousarray(B.T))
    assert np.array_equal(pe.memory.view(OUT, (5, 3), F16, (20, 4)), product().astype(np.float16))
    assert not pe.memory.view(OUT + 2, (5, 3), F16, (20, 4)).any()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("bias_shape", [3, (1, 3)])
def test_an_epilogue_works_step_by_step(staged: bool, bias_shape: Any) -> None:
    def body(tl: Any) -> None:
        take = tl.load if staged else tl.ref
        steps = (("bias", take(2048, bias_shape, "f16")), ("relu",), ("scale", 0.5), ("add", take(3072, (5, 3), "f16")))
        tl.composite("gemm", tl.ref(0, (5, 7), "f16"), tl.ref(1024, (7, 3), "f16"), OUT, epilogue=steps)

    pe = run(body, A, B, BIAS, MORE)
    wanted = np.maximum(product() + BIAS.astype(np.float32), 0) / 2 + MORE.astype(np.float32)
    assert np.array_equal(pe.memory.view(OUT, (5, 3), F16), wanted.astype(np.float16))
    steps = pe.commands[-1].params.epilogue
    assert [s.name for s in steps] == ["bias", "relu", "scale", "add"]
    assert steps[1:3] == (Epilogue("relu"), Epilogue("scale", 0.5))
    assert steps[0].operand.shape == (3,)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations(name: str) -> None:
    x = product()
    wanted = {"silu": x / (1 + np.exp(-x)), "gelu": 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))}

    def body(tl: Any) -> None:
        a, b = tl.ref(0, (5, 7), "f16"), tl.ref(1024, (7, 3), "f16")
        tl.composite("gemm", a, b, OUT, epilogue=[(name,)], out_dtype="f32")

    found = run(body, A, B).memory.view(OUT, (5, 3), F32)
    np.testing.assert_allclose(found, wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("extra", [F16, F32])
def test_a_bias_in_f32_is_not_rounded(extra: DType) -> None:
    bias = np.full(3, 1 / 3).astype(extra.numpy)

    def body(tl: Any) -> None:
        a, b = tl.ref(0, (5, 7), "f16"), tl.ref(1024, (7, 3), "f16")
        tl.composite("gemm", a, b, OUT, epilogue=(("bias", tl.ref(2048, 3, extra)),), out_dtype="f32")

    found = run(body, A, B, bias).memory.view(OUT, (5, 3), F32)
    assert np.array_equal(found, product() + bias.astype(np.float32))


@pytest.mark.parametrize(("out", "made"), [(None, I32), ("i8", I8), ("f16", F16), ("f32", F32)])
def test_integers_make_i32_and_anything_when_scaled(out: str | None, made: DType) -> None:
    a, b, bias = A.astype(np.int8), B.astype(np.int8), np.array([1000, 0, -1000], np.int32)

    def body(tl: Any) -> None:
        x, y = tl.ref(0, (5, 7), "i8"), tl.ref(1024, (7, 3), "i8")
        steps = (("bias", tl.ref(2048, 3, "i32")), ("scale", 0.25))
        tl.composite("gemm", x, y, OUT, epilogue=steps, out_dtype=out)

    exact = (a.astype(np.int64) @ b + bias) / 4
    limits = None if made.is_float else np.iinfo(made.numpy)
    wanted = exact if limits is None else np.clip(np.trunc(exact), limits.min, limits.max)
    assert np.array_equal(run(body, a, b, bias).memory.view(OUT, (5, 3), made), wanted.astype(made.numpy))


MAPPED: list[tuple[str, int, Callable[..., Any]]] = [
    ("exp", 1, np.exp),
    ("add", 2, np.add),
    ("sub", 2, np.subtract),
    ("fma", 3, lambda x, y, z: x * y + z),
    ("clamp", 3, lambda x, y, z: np.minimum(np.maximum(x, y), z)),
    ("lt", 2, np.less),
]


@pytest.mark.parametrize("case", MAPPED, ids=lambda case: case[0])
@pytest.mark.parametrize("staged", [0, 1, 3])
@pytest.mark.parametrize("shape", [(4, 6), (24,)], ids=str)
def test_elementwise_of_handles_and_refs(case: Any, staged: int, shape: tuple[int, ...]) -> None:
    name, arity, fn = case
    arrays = [random_array(np.random.default_rng(at), shape, F32) for at in range(arity)]

    def body(tl: Any) -> None:
        operands = [(tl.load if at < staged else tl.ref)(1024 * at, shape, "f32") for at in range(arity)]
        tl.composite(name, *operands, OUT)

    pe = run(body, *arrays)
    wanted = np.asarray(fn(*arrays))
    item = I8 if name == "lt" else F32
    np.testing.assert_allclose(pe.memory.view(OUT, shape, item), wanted, rtol=1e-6)
    composite = pe.commands[-1]
    assert composite.op is TILED_MATH
    assert composite.out.shape == (shape if len(shape) == 2 else (1, *shape))


def test_elementwise_with_numbers_strides_and_an_epilogue() -> None:
    x = np.arange(24, dtype=np.float16).reshape(4, 6)

    def body(tl: Any) -> None:
        every_other = tl.ref(0, (4, 3), "f16", strides=(12, 4))
        steps = (("add", every_other), ("scale", 2))
        tl.composite("sub", 10, every_other, OUT, epilogue=steps, out_dtype="f32")
        tl.composite("mul", tl.ref(2, 12, "f16", strides=4), 3, OUT + 1024, out_strides=8)

    memory = run(body, x).memory
    assert (memory.view(OUT, (4, 3), F32) == 20).all()
    assert np.array_equal(memory.view(OUT + 1024, (12,), F16, (8,)), np.arange(1, 24, 2) * 3)


@pytest.mark.parametrize("item", ALL, ids=str)
def test_all_types_stream(item: DType) -> None:
    x = random_array(RNG, (3, 4), item)
    found = run(lambda tl: tl.composite("add", tl.ref(0, (3, 4), item), 1, OUT), x).memory.view(OUT, (3, 4), item)
    assert np.array_equal(found, (x.astype(np.float32) + 1).astype(item.numpy))


def test_it_waits_for_its_handles_and_holds_them_until_it_is_done() -> None:
    def kernel(tl: Any) -> None:
        a, bias = tl.load(0, (4, 4), "f16"), tl.load(64, 4, "f16")
        tl.composite("gemm", a, tl.ref(128, (4, 4), "f16"), OUT, epilogue=(("bias", bias), ("bias", bias)))
        del a, bias
        tl.barrier()

    scratch = ScratchAllocator(TCM_BASE, 4096)
    kernel_run = KernelRun(kernel, (), {}, site_of(kernel), scratch)
    commands = [r for _ in range(3) if isinstance(r := kernel_run.resume(), Command)]
    assert commands[2].after == (0, 1)
    kernel_run.resume()
    kernel_run.completed(0)
    kernel_run.completed(1)
    assert len(scratch.live()) == 2
    kernel_run.completed(2)
    assert scratch.live() == ()
    kernel_run.close()


def test_a_composite_takes_no_scratch_and_a_ref_no_command() -> None:
    def body(tl: Any) -> None:
        ref = tl.ref(np.int64(0), 4, "torch.float16", strides=2)
        assert (ref.shape, ref.dtype, ref.nbytes, ref.va) == ((4,), F16, 8, 0)
        assert repr(ref) == "<ref (4,) f16 at 0x0>"
        assert {ref: 1}

    assert run(body).requests == []


def gemm(tl: Any, **how: Any) -> None:
    tl.composite("gemm", tl.ref(0, (4, 5), "f16"), tl.ref(64, (5, 6), "f16"), OUT, **how)


def ref(tl: Any, shape: Any = (4, 5), item: str = "f16") -> Any:
    return tl.ref(0, shape, item)


LOAD_IT = "is in memory, and only tl.composite takes refs: tl.load it"

FORBIDDEN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda tl: ref(tl) + 1, f"<ref .4, 5. f16 at 0x0> {LOAD_IT}"),
    (lambda tl: 2 * ref(tl), LOAD_IT),
    (lambda tl: np.float32(2) * ref(tl), LOAD_IT),
    (lambda tl: ref(tl) * tl.zeros((4, 5), "f16"), LOAD_IT),
    (lambda tl: tl.zeros((4, 5), "f16") - ref(tl), LOAD_IT),
    (lambda tl: ref(tl) < 0, LOAD_IT),
    (lambda tl: ref(tl) == 0, LOAD_IT),
    (lambda tl: -ref(tl), LOAD_IT),
    (lambda tl: ref(tl)[0], LOAD_IT),
    (lambda tl: list(ref(tl)), LOAD_IT),
    (lambda tl: 1 if ref(tl) else 2, LOAD_IT),
    (lambda tl: tl.exp(ref(tl)), LOAD_IT),
    (lambda tl: tl.maximum(1, ref(tl)), LOAD_IT),
    (lambda tl: tl.where(ref(tl), 1, tl.zeros(1, "f16")), LOAD_IT),
    (lambda tl: tl.sum(ref(tl)), LOAD_IT),
    (lambda tl: tl.cast(ref(tl), "f32"), LOAD_IT),
    (lambda tl: tl.store(0, ref(tl)), LOAD_IT),
    (lambda tl: tl.dot(ref(tl), ref(tl)), LOAD_IT),
    (lambda tl: tl.full(3, ref(tl), "f16"), LOAD_IT),
    (lambda tl: tl.load(ref(tl), 4, "f16"), "a pointer is a whole number of bytes, not a ref"),
    (lambda tl: tl.ref(tl.zeros(1, "f16"), 4, "f16"), "a pointer is a whole number of bytes, not a handle"),
    (lambda tl: tl.ref(-1, 4, "f16"), "a pointer is not negative"),
    (lambda tl: tl.ref(0, (2, 2, 2), "f16"), r"a ref has one or two axes, not the shape \(2, 2, 2\)"),
    (lambda tl: tl.ref(0, (), "f16"), r"one or two axes, not the shape \(\)"),
    (lambda tl: tl.ref(0, (2, 2), "f16", strides=2), "strides"),
    (lambda tl: tl.ref(0, (2, 2), "f17"), "unknown dtype 'f17'"),
    (lambda tl: tl.composite("gmem", ref(tl), OUT), r"; did you mean 'gemm'\?"),
    (lambda tl: gemm(tl, epilogue=(("rleu",),)), r"; did you mean 'relu'\?"),
    (lambda tl: tl.elementwise("sqtr", tl.zeros(2, "f16")), r"; did you mean 'sqrt'\?"),
    (lambda tl: tl.composite("conv", ref(tl), OUT), "no composite does 'conv'; there are: gemm, exp, .*clamp"),
    (lambda tl: tl.composite("softmax", ref(tl), OUT), "no composite does 'softmax'"),
    (lambda tl: tl.composite("gemm", ref(tl), ref(tl)), "'gemm' takes 2 operands and out_ptr, not 2 arguments"),
    (lambda tl: tl.composite("add", ref(tl), ref(tl), OUT, out_ptr=OUT), "'add' takes 2 operands and out_ptr, not 4"),
    (lambda tl: tl.composite("exp", ref(tl), ref(tl)), "a pointer is a whole number of bytes, not a ref"),
    (lambda tl: tl.composite("gemm", ref(tl), 3, OUT), "a gemm multiplies handles and refs, not numbers"),
    (lambda tl: tl.composite("gemm", ref(tl), ref(tl), OUT), "inner sizes 5 and 4 differ"),
    (lambda tl: tl.composite("gemm", ref(tl), ref(tl, 5), OUT), r"gemm takes matrices .* \(4, 5\) and \(5,\)"),
    (lambda tl: tl.composite("gemm", ref(tl), ref(tl, (5, 4), "f32"), OUT), "gemm of f16 and f32: .* use tl.cast"),
    (
        lambda tl: tl.composite("gemm", ref(tl, 2, "i32"), ref(tl, 2, "i32"), OUT),
        "this machine does not multiply i32 matrices",
    ),
    (lambda tl: tl.composite("add", 1, 2, OUT), "'add' of numbers alone"),
    (lambda tl: tl.composite("add", ref(tl), "1", OUT), "'1' is neither a handle nor a number"),
    (lambda tl: tl.composite("add", ref(tl, 2, "i8"), 1.5, OUT), "1.5 is not a whole number"),
    (lambda tl: tl.composite("add", ref(tl), ref(tl, (1, 5)), OUT), r"shapes \(4, 5\) and \(1, 5\): arrays in a comp"),
    (lambda tl: tl.composite("add", ref(tl), ref(tl, item="f32"), OUT), "add of f16 and f32: .* use tl.cast"),
    (lambda tl: tl.composite("exp", tl.zeros((2, 2, 2), "f16"), OUT), r"one or two axes, not the shape \(2, 2, 2\)"),
    (lambda tl: gemm(tl, out_dtype="i32"), "'gemm' of f16 does not make i32"),
    (lambda tl: gemm(tl, out_strides=12), "strides"),
    (lambda tl: gemm(tl, out_strides=(0, 2)), "writes one place many times"),
    (lambda tl: gemm(tl, epilogue="relu"), "an epilogue is a sequence of tuples"),
    (lambda tl: gemm(tl, epilogue=("relu",)), "an epilogue is a sequence of tuples"),
    (
        lambda tl: gemm(tl, epilogue=(("tanh",),)),
        "step 'tanh'; there are: bias, add, scale, scale_rows, scale_columns, relu, gelu, silu",
    ),
    (lambda tl: gemm(tl, epilogue=(("relu", 1),)), "epilogue step 'relu' takes 0 operands, not 1"),
    (lambda tl: gemm(tl, epilogue=(("bias",),)), "epilogue step 'bias' takes 1 operands, not 0"),
    (lambda tl: gemm(tl, epilogue=(("bias", 1),)), "epilogue step 'bias' takes a handle or a ref, not 1"),
    (lambda tl: gemm(tl, epilogue=(("scale", ref(tl)),)), "epilogue step 'scale' takes a number, not <ref"),
    (lambda tl: gemm(tl, epilogue=(("scale", "2"),)), "'2' is neither"),
    (
        lambda tl: gemm(tl, epilogue=(("bias", ref(tl, 4)),)),
        r"of shape \(4,\): the result is \(4, 6\), so \(6,\) or \(1, 6\)",
    ),
    (lambda tl: gemm(tl, epilogue=(("add", ref(tl, 6)),)), r"'add' of shape \(6,\): .* so \(4, 6\)"),
    (lambda tl: gemm(tl, epilogue=(("bias", ref(tl, 6, "bf16")),)), "with bf16: with f16 operands it takes f16, f32"),
    (lambda tl: tl.iota((), "i32"), r"axis -1 of a tensor of shape \(\)"),
    (lambda tl: tl.iota(130, "i8"), "i8 does not hold every index up to 129, only to 127"),
    (lambda tl: tl.iota((2, 300), "bf16"), "bf16 does not hold every index up to 299, only to 256; use i32"),
    (lambda tl: tl.elementwise("power", tl.zeros(2, "f16")), "unknown elementwise operator 'power'; there are: exp"),
    (lambda tl: tl.elementwise("add", tl.zeros(2, "f16")), "add takes 2 operands, not 1"),
]


@pytest.mark.parametrize("case", range(len(FORBIDDEN)))
def test_what_is_forbidden_says_so_at_the_kernels_line(case: int) -> None:
    body, message = FORBIDDEN[case]

    def kernel(tl: Any) -> None:
        body(tl)

    with pytest.raises(KernelError, match=message) as caught:
        FakePe(Memory(1 << 14)).run(kernel)
    assert str(caught.value).startswith(__file__)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == __file__


def test_a_ref_stays_on_its_pe() -> None:
    kept: list[Any] = []

    def first(tl: Any) -> None:
        kept.append(tl.ref(0, 4, "f16"))

    def second(tl: Any) -> None:
        tl.composite("exp", kept[0], OUT)

    FakePe(Memory(64)).run(first)
    with pytest.raises(KernelError, match="belongs to a kernel on PE 0 of cube 0 of SIP 0; this is PE 1 of cube 0"):
        FakePe(Memory(64)).run(second, site=site_of(second, (1, 0, 0)))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), st.data(), st.sampled_from(ALL))
def test_iota_counts_along_an_axis(shape: tuple[int, ...], data: st.DataObject, item: DType) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    pe = run(lambda tl: tl.store(OUT, tl.iota(shape, item, axis)))
    assert np.array_equal(pe.memory.view(OUT, shape, item), np.indices(shape)[axis].astype(item.numpy))


@pytest.mark.parametrize(("item", "most"), [(I8, 128), (F8E4M3, 17), (BF16, 257), (F16, 2049)])
def test_iota_counts_as_far_as_the_type_does(item: DType, most: int) -> None:
    pe = run(lambda tl: tl.store(OUT, tl.iota(most, item)))
    assert pe.memory.view(OUT, (most,), item).astype(np.int64).tolist() == list(range(most))


def test_the_example_of_the_documentation_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    names: dict[str, Any] = {}
    block = next(block for block in text.split("```python\n") if "def linear(" in block)
    exec(block.split("```")[0], names)
    memory = memory_with(A, B, BIAS)
    FakePe(memory).run(names["linear"], 0, 1024, 2048, OUT, 5, 7, 3)
    x = product() + BIAS.astype(np.float32)
    wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(memory.view(OUT, (5, 3), F16), wanted, rtol=1e-3, atol=1e-3)


def test_a_triangular_mask() -> None:
    def body(tl: Any) -> None:
        tl.store(OUT, tl.iota((1, 5), "i32") <= tl.iota((4, 1), "i32", axis=0))

    assert np.array_equal(run(body).memory.view(OUT, (4, 5), I8), np.tri(4, 5))
