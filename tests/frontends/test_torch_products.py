"""Products of PyTorch's tensors: what they compute on several cubes, and how near they come to what bounds them."""

from __future__ import annotations

from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.dtypes import F16  # noqa: E402
from kernbench.frontends.torch.launches import launch_on, view_of  # noqa: E402
from kernbench.frontends.torch.products import multiply_stream  # noqa: E402
from kernbench.kernels.gemm_grid import BlockProduct, SharedProduct  # noqa: E402
from kernbench.kernels.gemm_streams import StreamedProduct  # noqa: E402
from kernbench.kernels.gemv import GemvEpilogue  # noqa: E402
from kernbench.kernels.tiling import (  # noqa: E402
    CubeGrid,
    PeRates,
    ProductGrid,
    ProductStream,
    choose_cubes,
    choose_stream,
)
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

CUBES = ("system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=2")
FOUR_CUBES = resolve_topology("default", CUBES)
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
        multiply_stream("mm", x[None], y[None], out, (z,), product)
        result = out[0].cpu()
    expected = torch.addmm(addend, a.T, b.T, alpha=0.5).relu()
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "axis"), [((128, 768, 50257), "n"), ((128, 50257, 768), "k"), ((50257, 128, 768), "m")]
)
def test_products_with_one_long_axis_are_streamed(shape: tuple[int, int, int], axis: str) -> None:
    stream = choose_stream(64, 12 << 20, 8, shape, 2, 2)
    assert stream is not None
    assert (stream.axis, stream.extent) == (axis, 50257)
    pieces = list(stream.pieces((100, 6282)))
    assert sum(count for _, count in pieces) == 6282
    assert pieces[0] == (100, stream.first_piece)
    assert pieces[1] == (100 + stream.first_piece, 2 * stream.first_piece)
    assert choose_stream(64, 12 << 20, 8, (1024, 1024, 1024), 2, 2) is None


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
    assert choose_cubes(rates, 4, 8, *shape, 2, b_by_rows=False) is None
