"""Products of PyTorch with scales, of float8 and of integer weights, and products that write to ``out=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.frontends.torch.storage import overload_of  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

SCALED_MM, INT8_MM, INT4_MM, PACK, INT_MM = map(
    overload_of,
    ("_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_convert_weight_to_int4pack", "_int_mm"),
)
F8, F8_WIDE = torch.float8_e4m3fn, torch.float8_e5m2
BF16_ONLY = resolve_topology("default", ["pe.gemm.macs_per_ns={bf16: 4096}"])
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}


def on_machine(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call ``function`` with all tensors on the machine, and return its result on the host."""

    def move(x: Any) -> Any:
        return x.to(AHBM) if isinstance(x, torch.Tensor) else x

    return function(*map(move, args), **{name: move(x) for name, x in options.items()}).cpu()


def assert_near(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that a result has the dtype of ``expected``, and differs little from its largest element."""
    assert result.dtype is expected.dtype
    difference = (result.float() - expected.float()).abs().max()
    assert difference <= TOLERANCE[expected.dtype] * expected.float().abs().max()


@pytest.mark.parametrize("dtypes", [(F8, F8), (F8_WIDE, F8_WIDE), (F8, F8_WIDE)])
@pytest.mark.parametrize("m", [1, 3, 37])
def test_a_scaled_product_of_float8(m: int, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    torch.manual_seed(m)
    a, b = torch.randn(m, 48).to(dtypes[0]), torch.randn(80, 48).to(dtypes[1]).t()
    numbers = torch.tensor(0.7), torch.tensor([1.3])
    lines = torch.rand(m, 1), torch.rand(1, 80)
    bias = torch.randn(80, dtype=torch.bfloat16)
    with machine() as context:
        for scales in (numbers, lines):
            call = a, b, *scales, bias
            result = on_machine(SCALED_MM, *call, out_dtype=torch.bfloat16)
            assert_near(result, SCALED_MM(*call, out_dtype=torch.bfloat16))
        narrow = on_machine(SCALED_MM, a, b, *numbers, scale_result=torch.tensor(2.0), out_dtype=F8)
        assert not context.unmodelled
    expected = SCALED_MM(a, b, *numbers, scale_result=torch.tensor(2.0), out_dtype=F8)
    torch.testing.assert_close(narrow.float(), expected.float(), rtol=0.13, atol=0.01)


def test_float8_without_float8_in_the_matrix_unit() -> None:
    a, b, scales = torch.randn(3, 32).to(F8), torch.randn(16, 32).to(F8).t(), (torch.tensor(0.5), torch.tensor(2.0))
    with machine(topology=BF16_ONLY) as context:
        result = on_machine(SCALED_MM, a, b, *scales, out_dtype=torch.bfloat16)
        assert not context.unmodelled
    assert_near(result, SCALED_MM(a, b, *scales, out_dtype=torch.bfloat16))


def test_float8_factors_that_pytorch_refuses() -> None:
    square = torch.randn(16, 16).to(F8)
    with machine(), pytest.raises(RuntimeError, match="col_major"):
        on_machine(SCALED_MM, square, square, torch.ones(()), torch.ones(()))


# Rows, K and columns: digits of all rows fit in a tile, or weights are converted, with few rows or with many.
@pytest.mark.parametrize("shape", [(1, 17, 9), (3, 700, 70), (9, 1100, 300), (11, 640, 40), (150, 96, 80)])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_int8_weights(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    (m, k, n), generator = shape, torch.Generator().manual_seed(4)
    x = torch.randn(m, k, generator=generator).to(dtype)
    x[0, 0] = 100  # an outlier leaves digits for the other elements
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8, generator=generator)
    scales = torch.rand(n, generator=generator).to(dtype)
    with machine() as context:
        result = on_machine(INT8_MM, x, weight, scales)
        assert not context.unmodelled
    assert_near(result, ((x.float() @ weight.float().t()) * scales.float()).to(dtype))


@pytest.mark.parametrize(
    "shape", [(1, 64, 16, 32), (2, 96, 16, 32), (3, 512, 40, 128), (11, 96, 24, 32), (150, 256, 24, 128)]
)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_4_bit_weights(dtype: torch.dtype, shape: tuple[int, int, int, int]) -> None:
    (m, k, n, group), generator = shape, torch.Generator().manual_seed(4)
    weights = torch.randint(0, 16, (n, k), dtype=torch.int32, generator=generator)
    scales = torch.randn(k // group, n, 2, generator=generator).to(dtype)
    x = torch.randn(m, k, generator=generator).to(dtype)
    as_bytes = (weights[:, ::2] << 4 | weights[:, 1::2]).to(torch.uint8)
    with machine() as context:
        packed = PACK(as_bytes.to(AHBM), 2)
        assert packed.shape == (n // 8, k // 32, 32, 1)
        assert packed.dtype is torch.int32
        result = on_machine(INT4_MM, x, packed, group, scales)
        assert not context.unmodelled
    scale, zero = (scales.float()[:, :, i].t()[:, :, None] for i in range(2))
    floats = ((weights.float().view(n, -1, group) - 8) * scale + zero).view(n, k)
    assert_near(result, (x.float() @ floats.t()).to(dtype))


def test_4_bit_weights_of_wrong_sizes() -> None:
    with machine():
        with pytest.raises(InputError, match="a multiple of 8"):
            PACK(torch.zeros(9, 16, dtype=torch.uint8, device=AHBM), 2)
        packed = PACK(torch.zeros(8, 32, dtype=torch.uint8, device=AHBM), 2)
        with pytest.raises(InputError, match="groups"):
            INT4_MM(torch.zeros(1, 64, device=AHBM), packed, 48, torch.zeros(1, 8, 2, device=AHBM))


def test_products_of_int8() -> None:
    a, b = torch.randint(-128, 128, (17, 40), dtype=torch.int8), torch.randint(-128, 128, (24, 40), dtype=torch.int8)
    with machine() as context:
        assert torch.equal(on_machine(INT_MM, a, b.t()), INT_MM(a, b.t()))
        assert not context.unmodelled


@pytest.mark.slow
def test_narrow_weights_are_read_in_less_time_than_bf16() -> None:
    def duration(call: Callable[..., Any], *forms: tuple[tuple[int, ...], torch.dtype]) -> float:
        with machine(data=False) as context:
            call(*[torch.empty(shape, dtype=dtype, device=AHBM) for shape, dtype in forms])
            return sum(max(trace.pe_exec_ns.values()) for trace in context.traces if trace.phase == "launch")

    k, n, bf16 = 4096, 2048, torch.bfloat16
    one = ((1,), torch.float32)
    baseline = duration(lambda a, b: a @ b.t(), ((1, k), bf16), ((n, k), bf16))
    scaled = duration(lambda a, b, *s: SCALED_MM(a, b.t(), *s, out_dtype=bf16), ((1, k), F8), ((n, k), F8), one, one)
    assert scaled <= 0.6 * baseline
    for m in (1, 8):
        baseline = duration(lambda a, b: a @ b.t(), ((m, k), bf16), ((n, k), bf16))
        assert duration(INT8_MM, ((m, k), bf16), ((n, k), torch.int8), ((n,), bf16)) <= 0.65 * baseline
    for group in (64, 128):
        weights, scales = ((n // 8, k // 128, 32, 4), torch.int32), ((k // group, n, 2), bf16)
        int4 = duration(lambda x, w, s, group=group: INT4_MM(x, w, group, s), ((1, k), bf16), weights, scales)
        assert int4 <= 0.65 * duration(lambda a, b: a @ b.t(), ((1, k), bf16), ((n, k), bf16))


# Of the product's shape, of no elements, transposed, and a window of a larger tensor.
OUTS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.empty(5, 33, device=AHBM),
    lambda: torch.empty(0, device=AHBM),
    lambda: torch.empty(33, 5, device=AHBM).t(),
    lambda: torch.empty(10, 40, device=AHBM)[::2, 3:36],
]


@pytest.mark.parametrize("name", ["mm", "addmm", "matmul"])
def test_a_product_writes_to_out_in_one_launch(name: str) -> None:
    a, b, bias = torch.randn(5, 70), torch.randn(70, 33), torch.randn(33)
    operands = (bias, a, b) if name == "addmm" else (a, b)
    function = getattr(torch, name)
    with machine() as context:
        copies = [operand.to(AHBM) for operand in operands]
        for create in OUTS:
            out, launches = create(), count_launches(context)
            assert function(*copies, out=out) is out
            assert count_launches(context) == launches + 1
            torch.testing.assert_close(out.cpu(), function(*operands), atol=1e-4, rtol=1e-4)


def test_batches_of_products_write_to_out() -> None:
    x, a, b = torch.randn(3, 5, 33), torch.randn(3, 5, 70), torch.randn(3, 70, 33)
    with machine() as context:
        out, copies = torch.empty(3, 5, 33, device=AHBM), [operand.to(AHBM) for operand in (x, a, b)]
        launches = count_launches(context)
        torch.bmm(*copies[1:], out=out)
        torch.testing.assert_close(out.cpu(), a @ b, atol=1e-4, rtol=1e-4)
        torch.baddbmm(*copies, out=out)
        assert count_launches(context) == launches + 2
        torch.testing.assert_close(out.cpu(), x + a @ b, atol=1e-4, rtol=1e-4)


def test_out_that_is_an_operand() -> None:
    square, x = torch.randn(33, 33), torch.randn(33, 33)
    with machine() as context:
        factor, addend = square.to(AHBM), x.to(AHBM)
        launches = count_launches(context)
        torch.addmm(addend, factor, factor, out=addend)
        assert count_launches(context) == launches + 1  # each element is read before it is written
        torch.mm(factor, factor, out=factor)
        torch.testing.assert_close(addend.cpu(), torch.addmm(x, square, square), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(factor.cpu(), square @ square, atol=1e-4, rtol=1e-4)


def count_launches(context: Any) -> int:
    """Count the launches of a run so far."""
    return sum(trace.phase == "launch" for trace in context.traces)
