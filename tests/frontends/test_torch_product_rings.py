"""Products on rings of PEs: their numbers for all shapes and dtypes, and that no ring stands still."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extras import need

need("torch")

import torch  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.dtypes import F16  # noqa: E402
from kernbench.frontends.torch.launches import dtype_of, launch_on, view_of  # noqa: E402
from kernbench.frontends.torch.rings import ring_machine, ring_product  # noqa: E402
from kernbench.kernels.gemm_grid import BlockProduct  # noqa: E402
from kernbench.kernels.gemv import GemvEpilogue  # noqa: E402
from kernbench.kernels.product_grids import ProductGrid  # noqa: E402
from kernbench.kernels.product_rings import RingPosition, RingProgram  # noqa: E402
from kernbench.kernels.ring_sizes import choose_rings, list_choices  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

MESH = {
    cubes: resolve_topology("default", ("system.sips.count=1", f"sip.cube_mesh.w={w}", f"sip.cube_mesh.h={h}"))
    for cubes, (w, h) in {2: (2, 1), 4: (2, 2), 6: (2, 3), 9: (3, 3)}.items()
}
SMALL_SCRATCH = resolve_topology("default", ("system.sips.count=1", "sip.cube_mesh={w: 2, h: 2}", "pe.tcm.bytes=5MiB"))


def multiply_on_rings(context, a, b, addend=None, number=None, **epilogue):
    """Return the product of two batches, by choice ``number`` of the rings' sizes, or by the fastest one."""
    (batch, m, k), n = a.shape, b.shape[2]
    rates, item = ring_machine(context, dtype_of(a)), dtype_of(a)
    choices = list_choices(rates, batch, m, k, n, item, False)
    choice = choose_rings(rates, batch, m, k, n, item, False) if number is None else choices[number % len(choices)]
    assert choice is not None
    out = torch.empty(batch, m, n, dtype=torch.int32 if a.dtype is torch.int8 else a.dtype, device=AHBM)
    steps = GemvEpilogue(view_of(out), None if addend is None else view_of(addend), **epilogue)
    product = ring_product(rates, choice, BlockProduct(ProductGrid(1, 1, 1), view_of(a), view_of(b), steps))
    pes = [(0, cube, pe) for cube in range(rates.cubes) for pe in range(len(rates.form.corners))]
    launch_on("mm", pes, product.run, (out,), (a, b) if addend is None else (a, b, addend))
    return out.cpu()


def whole_numbers(seed, *shape, dtype=torch.float16):
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape)).to(dtype)


def check(settings, topology, shape, dtype=torch.float16, *, turned=(False, True), batch=1, number=None):
    m, k, n = shape
    a = whole_numbers(1, batch, *((k, m) if turned[0] else (m, k)), dtype=dtype)
    b = whole_numbers(2, batch, *((n, k) if turned[1] else (k, n)), dtype=dtype)
    x, y = (factor.transpose(1, 2) if is_turned else factor for factor, is_turned in zip((a, b), turned, strict=True))
    with machine(*settings, topology=topology) as context:
        x_there, y_there = (
            factor.to(AHBM).transpose(1, 2) if is_turned else factor.to(AHBM)
            for factor, is_turned in zip((a, b), turned, strict=True)
        )
        result = multiply_on_rings(context, x_there, y_there, number=number)
    assert torch.equal(result.double(), x.double() @ y.double())


@pytest.mark.parametrize("cubes", [2, 4, 6, pytest.param(9, marks=pytest.mark.slow)])
def test_shapes_that_nothing_divides(cubes):
    check((f"torch.cubes={cubes}", "torch.pes=2" if cubes > 2 else "torch.pes=4"), MESH[cubes], (37, 133, 77))


@pytest.mark.slow
@pytest.mark.parametrize("pes", [1, 3, 5, 8])
def test_any_number_of_pes(pes):
    check(("torch.cubes=4", f"torch.pes={pes}"), MESH[4], (70, 200, 300))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float32])
def test_types_of_the_matrix_unit(dtype):
    settings = ("torch.cubes=2", "torch.pes=4")
    if dtype is torch.float8_e4m3fn:  # its results would not fit
        m, k, n = 33, 130, 40
        a, b = whole_numbers(1, 1, m, k, dtype=dtype), whole_numbers(2, 1, n, k, dtype=dtype)
        with machine(*settings, topology=MESH[2]) as context:
            result = multiply_on_rings(context, a.to(AHBM), b.to(AHBM).transpose(1, 2))
        expected = (a.float() @ b.float().transpose(1, 2)).to(dtype)
        assert torch.equal(result.float(), expected.float())
        return
    check(settings, MESH[2], (33, 130, 40), dtype)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (True, True)])
def test_factors_that_lie_by_rows_or_by_columns(turned):
    check(("torch.cubes=2", "torch.pes=4"), MESH[2], (70, 160, 48), turned=turned)


def test_a_batch():
    check(("torch.cubes=2", "torch.pes=4"), MESH[2], (40, 130, 24), batch=3)


def test_an_epilogue_is_applied_before_rounding():
    a, b, bias = (whole_numbers(seed, *shape) for seed, shape in enumerate([(1, 40, 130), (1, 50, 130), (1, 1, 50)]))
    with machine("torch.cubes=2", "torch.pes=4", topology=MESH[2]) as context:
        addend = bias.to(AHBM).expand(1, 40, 50)
        result = multiply_on_rings(
            context, a.to(AHBM), b.to(AHBM).transpose(1, 2), addend, scale=0.125, activation="relu"
        )
    expected = torch.relu(0.125 * (a.float() @ b.float().transpose(1, 2)) + bias.float()).half()
    assert torch.equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("topology", [MESH[4], SMALL_SCRATCH], ids=["16MiB", "5MiB"])
def test_no_random_shape_deadlocks(seed, topology):
    chance = np.random.default_rng(seed)
    shape = int(chance.integers(1, 300)), int(chance.integers(65, 1200)), int(chance.integers(1, 400))
    settings = ("torch.cubes=4", f"torch.pes={chance.integers(1, 5)}")
    check(settings, topology, shape, turned=(bool(seed % 3 == 0), bool(seed % 2)), number=seed)


def test_rows_of_several_waves_and_columns_of_several_passes():
    """Scratch then has room for few half sums and for a part of B."""
    a, b = whole_numbers(1, 1, 200, 200), whole_numbers(2, 1, 150, 200)
    with machine("torch.cubes=2", "torch.pes=4", topology=MESH[2]) as context:
        rates, item = ring_machine(context, dtype_of(a)), dtype_of(a)
        choice = choose_rings(rates, 1, 200, 200, 150, item, False)
        sizes = replace(choice.sizes, own_pieces=1, columns=16, pass_columns=24, wave_rows=64)
        out = torch.empty(1, 200, 150, dtype=a.dtype, device=AHBM)
        x, y = a.to(AHBM), b.to(AHBM).transpose(1, 2)
        block = BlockProduct(ProductGrid(1, 1, 1), view_of(x), view_of(y), GemvEpilogue(view_of(out)))
        product = ring_product(rates, replace(choice, sizes=sizes), block)
        assert len(product.blocks[0].waves) > 2
        launch_on("mm", [(0, cube, pe) for cube in range(2) for pe in range(4)], product.run, (out,), (x, y))
        assert torch.equal(out.cpu().double(), a.double() @ b.double().transpose(1, 2))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("n", [64, 75])
def test_blocks_of_cubes_each_have_their_rows(n, turned):
    """If parts divide the columns, a cube has those of the cubes in its place in all blocks, unless B is row-major."""
    a, b = whole_numbers(1, 1, 70, 200), whole_numbers(2, 1, *((n, 200) if turned else (200, n)))
    with machine("torch.cubes=4", "torch.pes=4", topology=MESH[4]) as context:
        x, y = a.to(AHBM), b.to(AHBM).transpose(1, 2) if turned else b.to(AHBM)
        choices = list_choices(ring_machine(context, dtype_of(a)), 1, 70, 200, n, dtype_of(a), False)
        number = [choice.blocks for choice in choices].index(2)
        result = multiply_on_rings(context, x, y, number=number)
    assert torch.equal(result.double(), a.double() @ (b.transpose(1, 2) if turned else b).double())


def test_the_group_that_finishes_a_row_block_first_sends_its_half_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group that stores a row block finishes it later than the other group, on the mean."""
    own: dict[RingPosition, frozenset[int]] = {}
    run = RingProgram.run

    def note(program: RingProgram) -> None:
        run(program)
        own[program.at] = program.own_rows

    monkeypatch.setattr(RingProgram, "run", note)
    m, k, n = 256, 256, 64
    with machine("torch.cubes=2", "torch.pes=4", topology=MESH[2], data=False) as context:
        a, b, out = (
            torch.empty(shape, dtype=torch.float16, device=AHBM) for shape in ((1, m, k), (1, n, k), (1, m, n))
        )
        rates = ring_machine(context, F16)
        choice = choose_rings(rates, 1, m, k, n, F16, False)
        steps = GemvEpilogue(view_of(out))
        product = ring_product(
            rates, choice, BlockProduct(ProductGrid(1, 1, 1), view_of(a), view_of(b.transpose(1, 2)), steps)
        )
        launch_on("mm", [(0, cube, pe) for cube in range(2) for pe in range(4)], product.run, (out,), (a, b))
        context.drain()
    (block,) = product.blocks
    (wave,) = block.waves
    forward, backward = ([(place.cube, place.part) for place in ring] for ring in block.ring.rings)
    later = 0
    for position, place in enumerate(forward):
        places = [RingPosition(0, 0, position), RingPosition(0, 1, backward.index(place))]
        orders = [wave.rows_of(at.group, at.position) for at in places]
        assert sorted(own[places[0]] | own[places[1]]) == sorted(orders[0])
        assert len(own[places[0]]) == len(own[places[1]])
        for group, at in enumerate(places):
            later += sum(orders[group].index(row) - orders[1 - group].index(row) for row in own[at])
    assert later > len(own) * len(wave.row_blocks) // 2


def test_a_row_major_factor_is_read_once():
    """With several blocks, each would read all rows of it from all cubes, over the links in the middle of the mesh."""
    with machine("torch.cubes=16", topology=resolve_topology("default")) as context:
        assert choose_rings(ring_machine(context, F16), 1, 512, 4096, 4096, F16, True).blocks == 1
