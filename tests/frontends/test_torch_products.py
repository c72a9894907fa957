"""Products of PyTorch's tensors: what they compute on several cubes, and how near they come to what bounds them."""

from __future__ import annotations

from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.dtypes import BF16, F16  # noqa: E402
from kernbench.frontends.torch.launches import launch_on, view_of  # noqa: E402
from kernbench.frontends.torch.products import multiply_stream  # noqa: E402
from kernbench.kernels.gemm_grid import BlockProduct, SharedProduct  # noqa: E402
from kernbench.kernels.gemm_streams import ProductStream, StreamedProduct, StreamMachine  # noqa: E402
from kernbench.kernels.gemv import GemvEpilogue  # noqa: E402
from kernbench.kernels.product_grids import CubeGrid, PeRates, ProductGrid, choose_cubes  # noqa: E402
from kernbench.kernels.product_ways import choose_way  # noqa: E402
from kernbench.kernels.ring_sizes import RingMachine  # noqa: E402
from kernbench.kernels.view import View  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

CUBES = ("system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=2")
FOUR_CUBES = resolve_topology("default", CUBES)
NO_PHASE = resolve_topology("one-cube", ["cube.hbm.refresh=spread"])
SMALL_TCM = resolve_topology("default", [*CUBES, "pe.tcm.bytes=5MiB"])


def kernel_ns(context: RuntimeContext[Any]) -> float:
    """What the launches of products took in their slowest PEs, one after another."""
    return sum(max(each.pe_exec_ns.values()) for each in context.traces if " mm " in f" {each.name} ")


# Rows, summed, columns: each cube takes rows of B, which no number of PEs divides; PEs take columns of all rows.
@pytest.mark.parametrize("shape", [(1, 709, 1031), (5, 2048, 515), (1, 1031, 300), (1, 3, 300_007)])
def test_a_few_rows_by_a_matrix_that_lies_row_by_row(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    generator = torch.Generator().manual_seed(5)
    a, b, bias = (torch.randn(*each, generator=generator) for each in ((m, k), (k, n), (n,)))
    with machine("torch.cubes=4", topology=FOUR_CUBES):
        there = torch.addmm(*(each.to(AHBM) for each in (bias, a, b)), beta=2, alpha=0.5).cpu()
    torch.testing.assert_close(there, torch.addmm(bias, a, b, beta=2, alpha=0.5), atol=1e-4, rtol=1e-4)


# One row of B is left when the memories of a cube have had a part each.
@pytest.mark.parametrize("k", [129, 257])
@pytest.mark.parametrize(("cubes", "n"), [(1, 1031), pytest.param(4, 5003, marks=pytest.mark.slow)])
def test_the_rest_of_what_is_summed_by_a_few_rows(cubes: int, n: int, k: int) -> None:
    a, b = torch.arange(2 * k).reshape(2, k) % 3 - 1.0, torch.arange(k * n).reshape(k, n) % 5 - 2.0
    with machine(f"torch.cubes={cubes}", topology=FOUR_CUBES):
        assert torch.equal((a.to(AHBM) @ b.to(AHBM)).cpu(), a @ b)


# Of which B's columns of a PE, then the sums of rows of B, then A have no room in scratch at a time.
@pytest.mark.parametrize(("cubes", "m", "k", "n"), [(1, 1, 65, 8_200), (4, 32, 200, 8_200), (1, 8, 40_000, 3)])
def test_a_few_rows_by_a_matrix_that_has_no_room(cubes: int, m: int, k: int, n: int) -> None:
    a, b = torch.arange(m * k).reshape(m, k) % 3 - 1.0, torch.arange(k * n).reshape(k, n) % 5 - 2.0
    with machine(f"torch.cubes={cubes}", "torch.pes=1", topology=SMALL_TCM):
        assert torch.equal((a.to(AHBM) @ b.to(AHBM)).cpu(), a @ b)


@pytest.mark.parametrize("cubes", [1, 4])
def test_a_few_rows_take_about_as_long_however_the_matrix_lies(cubes: int) -> None:
    took = list[float]()
    for turned in (True, False):
        with machine(f"torch.cubes={cubes}", data=False, topology=FOUR_CUBES) as context:
            a, b = torch.empty(1, 2048, device=AHBM), torch.empty(2048, 2048, device=AHBM)
            a @ (b.T if turned else b)
            took.append(kernel_ns(context))
    assert took[1] < 1.3 * took[0], took


# The gather of the row delays no weights: 6,103 ns with f16, of which 5,106 are the bytes at the stream rate.
@pytest.mark.slow
@pytest.mark.xfail(reason="6,523 ns: a refresh falls into the reads (6,177 with refresh spread)")
def test_a_row_by_weights_over_all_cubes_takes_little_longer_than_their_bytes() -> None:
    topology = resolve_topology("default", ["system.sips.count=1"])
    with machine("torch.cubes=16", data=False, topology=topology) as context:
        x, w = (torch.empty(n, 4096, dtype=torch.float16, device=AHBM) for n in (1, 14336))
        torch.nn.functional.linear(x, w)
        assert context.traces[-1].total_ns < 6150


@pytest.mark.parametrize("pes", [3, 8])
@pytest.mark.parametrize(("m", "k"), [(1, 4160), (3, 2100), (2, 130)])
def test_few_rows_are_gathered_while_weights_arrive(m: int, k: int, pes: int) -> None:
    """With two copies of A in a cube and with one; panels of several pieces, and rows that fill none."""
    a, w = torch.arange(m * k).reshape(m, k) % 3 - 1.0, torch.arange(k * 300).reshape(300, k) % 5 - 2.0
    with machine("torch.cubes=4", f"torch.pes={pes}", topology=FOUR_CUBES):
        on_machine = torch.nn.functional.linear(a.half().to(AHBM), w.half().to(AHBM)).cpu()
    assert torch.equal(on_machine, (a @ w.T).half())


@pytest.mark.parametrize("turned", [False, True])
def test_pes_that_share_a_product_do_not_all_ask_one_slice(turned: bool) -> None:
    """Either by rows or by columns of B: they keep the matrix units busy."""
    with machine(data=False) as context:
        a, b = (torch.empty(n, 1024, dtype=torch.float16, device=AHBM) for n in (512, 1024))
        a @ (b.T if turned else b)
        took = kernel_ns(context)
        pes = len(context.traces[-1].pe_exec_ns)
    assert took < 512 * 1024**2 / context.topology.pe.gemm.macs_per_ns["f16"] / 8 * 1.5, pes


def test_a_product_on_one_pe_goes_by_the_best_blocks() -> None:
    with machine("torch.pes=1", data=False) as context:
        a, b = (torch.empty(512, 512, dtype=torch.float16, device=AHBM) for _ in range(2))
        a @ b
        took = kernel_ns(context)
    spec = context.topology.pe.gemm
    ideal = 512**3 / spec.macs_per_ns["f16"]
    assert took < ideal * 1.1


# Of whom each cube brings rows of A and columns of B into its memory, depends on the grid; nothing divides evenly.
@pytest.mark.parametrize("grid", [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_cubes_share_a_product(grid: tuple[int, int], turned: bool) -> None:
    (rows, columns), (m, k, n) = grid, (37, 70, 45)
    generator = torch.Generator().manual_seed(5)
    a, b, addend = (torch.randn(*each, generator=generator) for each in ((m, k), (n, k) if turned else (k, n), (m, n)))
    with machine("torch.cubes=4", topology=FOUR_CUBES) as context:
        x, y, z = (each.to(AHBM)[None] for each in (a, b, addend))
        y = y.transpose(1, 2) if turned else y
        out = torch.empty(1, m, n, device=AHBM)
        product = BlockProduct(
            ProductGrid(1, 1, 1), view_of(x), view_of(y), GemvEpilogue(view_of(out), view_of(z), scale=0.5)
        )
        within = ProductGrid(1, 2, 4)
        shared = SharedProduct(product, CubeGrid(rows, columns, within, columns > 1, rows > 1 or not turned))
        buffer = torch.empty(shared.buffer_elements, device=AHBM)
        pes = [(0, cube, pe) for cube in range(4) for pe in range(context.topology.pes_per_cube)]
        launch_on("mm", pes, shared.run, (out, buffer), (x, y, z))
        found = out[0].cpu()
    expected = torch.addmm(addend, a, b.T if turned else b, alpha=0.5)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(301, 37, 45), (37, 301, 45), (37, 45, 301)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_pes_stream_the_longest_axis_of_a_product(shape: tuple[int, int, int], is_transposed: bool) -> None:
    (m, k, n), generator = shape, torch.Generator().manual_seed(6)
    a, b, addend = (torch.randn(*sizes, generator=generator) for sizes in ((k, m), (n, k), (m, n)))
    with machine() as context:
        x, y, z = a.to(AHBM).t(), b.to(AHBM).t(), addend.to(AHBM)[None]
        x, y = (matrix if is_transposed else matrix.contiguous() for matrix in (x, y))
        pes = context.topology.pes_per_cube
        axis = "mkn"[shape.index(301)]
        out = torch.empty(1, m, n, device=AHBM)
        epilogue = GemvEpilogue(view_of(out), view_of(z), scale=0.5, activation="relu")
        product = StreamedProduct(ProductStream(axis, 301, pes, 4, 16), view_of(x[None]), view_of(y[None]), epilogue)
        multiply_stream("mm", out, (x[None], y[None], z), product)
        result = out[0].cpu()
    expected = torch.addmm(addend, a.T, b.T, alpha=0.5).relu()
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


# The head of a language model, its input gradients and its weight gradients, as linear layers store them.
@pytest.mark.parametrize(
    ("shape", "layout", "axis"),
    [
        ((128, 768, 50257), "mk kn", "n"),
        ((128, 768, 50257), "mk nk", ""),
        ((128, 50257, 768), "mk kn", "k"),
        ((128, 50257, 768), "mk nk", "k"),
        ((20001, 300, 48), "km kn", "m"),
        ((50257, 128, 768), "km kn", "m"),
        ((768, 128, 50257), "km kn", "n"),
        ((20001, 32, 768), "km kn", ""),
        ((240, 512, 48), "km kn", ""),
        ((1024, 1024, 1024), "mk kn", ""),
    ],
)
def test_products_stream_a_long_axis_where_that_is_faster(shape: tuple[int, int, int], layout: str, axis: str) -> None:
    """A stream pays where blocks would read short pieces of rows, or an operand again for each row of PEs."""
    (m, k, n), spec = shape, resolve_topology("default").spec
    a, b = View.row_major(0, (1, m, k), BF16), View.row_major(0, (1, k, n), BF16)
    if "km" in layout:
        a = View.row_major(0, (1, k, m), BF16).transposed
    if "nk" in layout:
        b = View.row_major(0, (1, n, k), BF16).transposed
    rates, rings, cube = PeRates.of(spec, BF16), RingMachine.of(spec, BF16, 1, 8), StreamMachine.of(spec, BF16, 8)
    way = choose_way(rates, rings, cube, (a, b), (1, 1), GemvEpilogue(View.row_major(0, (1, m, n), BF16)))
    assert (way.stream.axis if way.stream else "") == axis


# The head of GPT-2 as a linear layer, its input gradient and its weight gradient, and the gradients of ``x @ w``.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((128, 768, 50257), "mk nk"),
        ((128, 50257, 768), "mk kn"),
        ((50257, 128, 768), "km kn"),
        ((128, 50257, 768), "mk nk"),
        ((768, 128, 50257), "km kn"),
    ],
)
def test_the_head_of_a_language_model_takes_little_longer_than_its_work(
    shape: tuple[int, int, int], layout: str
) -> None:
    (m, k, n), item = shape, torch.bfloat16
    with machine(data=False, topology=resolve_topology("default")) as context:
        a = (
            torch.empty(m, k, dtype=item, device=AHBM)
            if "mk" in layout
            else torch.empty(k, m, dtype=item, device=AHBM).t()
        )
        b = (
            torch.empty(k, n, dtype=item, device=AHBM)
            if "kn" in layout
            else torch.empty(n, k, dtype=item, device=AHBM).t()
        )
        a @ b
        total_ns = sum(trace.total_ns for trace in context.traces if trace.phase == "launch")
    work_ns = m * k * n / context.topology.pe.gemm.macs_per_ns["bf16"] / context.topology.pes_per_cube
    assert total_ns <= 1.3 * work_ns


@pytest.mark.parametrize("axis", ["m", "k", "n"])
def test_pieces_of_a_stream_cover_its_share(axis: str) -> None:
    stream = ProductStream(axis, 50257, 8, 64, 1344)
    pieces = list(stream.pieces((100, 6283)))
    assert [first for first, _ in pieces] == [100 + sum(size for _, size in pieces[:i]) for i in range(len(pieces))]
    assert sum(size for _, size in pieces) == 6283
    assert [size for _, size in pieces[:3]] == [64, 128, 256]
    assert max(size for _, size in pieces) == 1344
    if axis != "k":
        assert pieces[-1][1] <= 2 * 64


def test_four_cubes_are_faster_than_one() -> None:
    """They were slower where eight PEs of each asked the other cubes for the same rows."""
    took = list[float]()
    for cubes in (1, 4):
        with machine(f"torch.cubes={cubes}", data=False, topology=FOUR_CUBES) as context:
            a, b = (torch.empty(n, 1024, dtype=torch.float16, device=AHBM) for n in (256, 1024))
            a @ b.T
            took.append(kernel_ns(context))
    assert took[1] < 0.75 * took[0], took


@pytest.mark.parametrize("shape", [(512, 1024, 1024), (512, 1536, 1536)])
def test_cubes_bring_nothing_where_pes_do_better_alone(shape: tuple[int, int, int]) -> None:
    """Where what they ask for comes in the time that they multiply, it need not be brought first."""
    rates = PeRates.of(FOUR_CUBES.spec, F16)
    assert choose_cubes(rates, 4, 8, *shape, 2, b_by_rows=False)[1] is None


# The second group is empty.
@pytest.mark.parametrize("columns", [8, 56])
def test_each_group_of_rows_has_a_matrix_of_its_own(columns: int) -> None:
    ends = (8, 8, 45, 96)
    a, b = torch.arange(96 * 24).reshape(96, 24) % 5 - 2.0, torch.arange(96 * columns).reshape(4, 24, columns) % 7 - 3.0
    rows = [slice(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    with machine():
        x, y, offs = a.bfloat16().to(AHBM), b.bfloat16().to(AHBM), torch.tensor(ends, dtype=torch.int32).to(AHBM)
        product = torch._grouped_mm(x, y, offs).cpu()  # noqa: SLF001 - as programs call it
        sums = torch._grouped_mm(x.T, (x[:, :1] * 2 + 1).expand(96, 8).contiguous(), offs).cpu()  # noqa: SLF001
    expected = torch.cat([a[own] @ b[group] for group, own in enumerate(rows)])
    assert torch.equal(product, expected.bfloat16())
    wide = (a[:, :1] * 2 + 1).expand(96, 8)
    assert torch.equal(sums, torch.stack([a[own].T @ wide[own] for own in rows]).bfloat16())


def time_of_groups(ends: tuple[int, ...], *, data: bool, has_ends: bool) -> float:
    """Return the time of a product of groups of rows in ns; ``has_ends``: a run without data knows their ends."""
    with machine(data=data, topology=NO_PHASE) as context:
        a, b = (torch.ones(shape, dtype=torch.bfloat16).to(AHBM) for shape in ((96, 64), (3, 64, 48)))
        offs = torch.tensor(ends, dtype=torch.int32).to(AHBM)
        offs = offs if has_ends else (offs.float() * 1).int()
        context.drain()
        begin = context.operators.now()
        torch._grouped_mm(a, b, offs)  # noqa: SLF001 - as programs call it
        context.drain()
        return context.operators.now() - begin


def test_groups_of_unknown_ends_take_the_time_of_equal_groups() -> None:
    equal, uneven = (32, 64, 96), (8, 8, 96)
    with_data, *without = (
        time_of_groups(ends, data=data, has_ends=False)
        for ends, data in ((equal, True), (equal, False), (uneven, False))
    )
    assert without == [with_data, with_data]
    for ends in (equal, uneven):
        assert time_of_groups(ends, data=True, has_ends=True) == time_of_groups(ends, data=False, has_ends=True)
