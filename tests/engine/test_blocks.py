"""Products by blocks: panels in the scheduler's TCM, sums in the matrix unit, what is read and when, what streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as every
from typing import Any

import numpy as np
import pytest

from covering import covering
from engine_support import Placed, fetch, launch, place, two_cubes
from ideal_memory import IDEAL, SLICE_GBS
from kernbench.common.dtypes import dtype
from kernbench.common.errors import KernelError
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.triton_emu.tl_context import TLContext as Tl

TILE_NS = 16.0  # 32 · 64 · 32 / 4096
TILE_BYTES = 2 * (32 * 64 + 64 * 32)  # of a tile of A and one of B, in f16
STAGED = "load_ref"


class Product:
    """A composite GEMM on PE 0; ``block`` as the kernel says it."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        block: object,
        *overrides: str,
        of: str = "f16",
        data: bool = False,
        staged: tuple[bool, bool] = (False, False),
        epilogue: Callable[[Tl, Placed], Sequence[tuple[Any, ...]]] = lambda tl, x: (),
        times: int = 1,
        begin: object = None,
    ) -> None:
        m, k, n = shape
        self.engine = GraphEngine(two_cubes(*IDEAL, *overrides), enable_data=data)
        rng = np.random.default_rng(0)
        kind = dtype(of).numpy
        a, b = (rng.integers(-4, 5, extents).astype(kind) for extents in ((m, k), (k, n)))
        self.out = place(self.engine, np.zeros((times * m, n), np.int32 if of == "i8" else kind), name="c")
        extra = place(self.engine, rng.integers(-4, 5, (m, n)).astype(kind), name="x")
        sizes = {0: (m, k), 1: (k, n)}

        def kernel(a: int, b: int, x: int, c: int, *, tl: Tl) -> None:
            left, right = ((tl.load if staged[at] else tl.ref)(ptr, sizes[at], of) for at, ptr in enumerate((a, b)))
            for at in range(times):
                out = c + at * m * n * dtype(of).itemsize
                tl.composite("gemm", left, right, out, epilogue=epilogue(tl, x), block=block, begin=begin)

        before = self.engine.n_events
        trace = launch(self.engine, kernel, *(place(self.engine, x) for x in (a, b)), extra, self.out)
        self.events = self.engine.n_events - before
        self.ns = trace.pe_exec_ns[0, 0, 0]
        self.log = list(self.engine.op_log)

    @property
    def blocks(self) -> list[str]:
        """Of each composite, what the log says of its blocks."""
        return [r.name.removeprefix("composite").strip() for r in self.log if r.kind == "gemm" and r.tile is None]

    def moves(self, kind: str, name: str) -> list[OpRecord]:
        """The records of an operand's descriptors."""
        return [r for r in self.log if r.kind == kind and r.name == name]

    def stages(self, kind: str) -> int:
        """How many tiles passed a stage."""
        return sum(r.kind == kind and r.name == "stage" for r in self.log)


def test_a_product_by_blocks_by_hand() -> None:
    """64³ in two blocks of 64 x 32, K in one panel: A's stays, B's second comes right behind the first.

    The first block waits for 8 KiB of A and 4 KiB of B; from then on there is a tile every 16 ns, and behind the last
    its row of 32 x 32 is written.
    """
    done = Product((64, 64, 64), (64, 64, 32))
    set_up, there, header, access, back = 2, 2.039, 32 / 256, 30, 2.039
    panels = set_up + there + header + access + (8192 + 4096) / SLICE_GBS + back
    last = 2048 / 512 + set_up + there + 2048 / SLICE_GBS + access + back + header
    assert done.ns == pytest.approx(6 + panels + 1 + 16 + 4 * TILE_NS + last, abs=0.01)
    assert [r.tile for r in done.moves("dma_read", "a")] == [(0, 0, 0, 2, 2, 1)]
    assert [r.tile for r in done.moves("dma_read", "b")] == [(0, 0, 0, 2, 1, 1), (0, 1, 0, 2, 1, 1)]
    assert [r.tile for r in done.moves("dma_write", "out")] == [(i, j, 0, 1, 1, 1) for j in range(2) for i in range(2)]


def test_a_block_waits_for_the_panels_two_steps_before() -> None:
    """Panels that take longer to read than to work on: reading goes on all the time, of two steps at once at most."""
    done = Product((32, 1024, 32), (32, 64, 32))
    reads = sorted(done.moves("dma_read", "b"), key=lambda r: r.t_start)
    fetches = {r.tile[2]: r.t_end for r in done.log if r.kind == "fetch"}
    assert len(reads) == 16
    for at, read in enumerate(reads[2:]):
        assert read.t_start >= fetches[at]  # of the step whose place it takes
    assert reads[2].t_start < fetches[1]


@pytest.mark.parametrize("staged", [(False, False), (True, False)])
@pytest.mark.parametrize("shape", [(100, 200, 50), (300, 64, 90)])
def test_blocks_go_round_from_where_they_begin(shape: tuple[int, int, int], staged: tuple[bool, bool]) -> None:
    def epilogue(tl: Tl, x: Placed) -> Sequence[tuple[Any, ...]]:
        return (("add", tl.load(x, (shape[0], shape[2]), "f16")), ("relu",))

    block, last = (64, 64, 32), tuple(n - 1 for n in shape)
    plain, turned = (
        Product(shape, block, data=True, staged=staged, epilogue=epilogue, begin=begin) for begin in (None, last)
    )
    assert (fetch(turned.engine, turned.out) == fetch(plain.engine, plain.out)).all()
    rows, columns = -(-shape[0] // 32), -(-shape[2] // 32)
    first = [min(turned.moves("dma_write", "out"), key=lambda r: r.t_start).tile[axis] for axis in (0, 1)]
    assert first == [rows - 2, columns - 1]
    for kind, name in (("dma_read", "b"), ("dma_write", "out")):
        assert len(turned.moves(kind, name)) == len(plain.moves(kind, name))
    assert turned.stages("gemm") == plain.stages("gemm")


def test_512_cubed_keeps_the_matrix_unit_busy() -> None:
    engine = GraphEngine(two_cubes(), enable_data=False)
    a, b, c = (place(engine, np.zeros((512, 512), np.float16)) for _ in range(3))

    def kernel(a: int, b: int, c: int, *, tl: Tl) -> None:
        tl.composite("gemm", tl.ref(a, (512, 512), "f16"), tl.ref(b, (512, 512), "f16"), c, block="auto")

    assert 2048 * TILE_NS / launch(engine, kernel, a, b, c).pe_exec_ns[0, 0, 0] >= 0.92


def test_descriptors_are_counted_by_panel_and_stages_by_tile() -> None:
    """256 x 512 x 256 in 2 x 2 blocks, K in two panels: each operand is read for each block of the other."""
    done = Product((256, 512, 256), "auto")
    assert done.blocks == ["by blocks of 128×256×128"]
    assert [len(done.moves("dma_read", name)) for name in "ab"] == [8, 8]
    assert len(done.moves("dma_write", "out")) == 4 * 4  # rows of tiles
    assert [done.stages(kind) for kind in ("fetch", "gemm", "store")] == [512, 512, 64]
    stages = 2 * 512 + 64 + 512  # and the issue of each tile
    assert done.events <= stages + 18 * (16 + 16) + 60


def test_sizes_in_the_log_name_the_plan() -> None:
    assert Product((64, 64, 64), (32, 64, 32)).blocks == ["by blocks of 32×64×32"]
    assert Product((72, 200, 72), (100, 200, 100)).blocks == [
        "by blocks of 96×256×96"
    ]  # whole tiles, no more than that
    assert Product((64, 64, 64), None).blocks == [""]


# --- what streams -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["auto", (64, 64, 64)])
@pytest.mark.parametrize(
    "override",
    [
        "pe.tcm.scheduler_reserved_bytes=1",
        f"pe.tcm.scheduler_reserved_bytes={2 * TILE_BYTES - 1}",
        "pe.gemm.acc_bytes=0",
        "pe.gemm.acc_bytes=4095",
    ],
)
def test_without_room_for_two_tile_panels_or_a_tile_of_sums_it_streams(block: object, override: str) -> None:
    streamed, done = (Product((100, 200, 50), each, override) for each in (None, block))
    assert done.blocks == [""]
    assert (done.ns, done.events) == (streamed.ns, streamed.events)


def test_with_just_that_room_it_does_not() -> None:
    room = (f"pe.tcm.scheduler_reserved_bytes={2 * TILE_BYTES}", "pe.gemm.acc_bytes=4096")
    done = Product((100, 200, 50), "auto", *room, data=True)
    assert done.blocks == ["by blocks of 32×64×32"]
    assert (fetch(done.engine, done.out) == fetch(*_streamed((100, 200, 50)))).all()


def _streamed(shape: tuple[int, int, int]) -> tuple[GraphEngine, Placed]:
    done = Product(shape, None, data=True)
    return done.engine, done.out


def test_operands_in_tcm_are_panels_already() -> None:
    staged = (True, True)
    streamed, done = (Product((128, 256, 128), each, staged=staged) for each in (None, "auto"))
    assert done.blocks == [""]
    assert done.ns == streamed.ns


def test_of_one_staged_operand_the_other_comes_by_panels() -> None:
    """x @ W with a few rows: W is read once, in long rows."""
    streamed, done = (Product((8, 1024, 512), each, staged=(True, False)) for each in (None, "auto"))
    assert done.blocks == ["by blocks of 32×64×512"]
    assert len(done.moves("dma_read", "b")) == 16
    assert sum(r.kind == "dma_read" for r in done.log) == 16 + 1
    assert done.ns < streamed.ns
    bound = (8 + 512) * 1024 * 2 / SLICE_GBS
    assert bound < done.ns < 1.1 * bound


# --- sizes that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ((512, 64, 512), r"sums of 1048576 bytes \(pe.gemm.acc_bytes: 262144\)"),
        ((256, 4096, 256), r"panels of 8388608, two of each operand \(pe.tcm.scheduler_reserved_bytes: 4194304\)"),
        ((0, 64, 32), "allowed are None, 'auto', 'least' and three whole numbers above 0"),
        ((32, 64), "allowed are None, 'auto', 'least' and three whole numbers above 0"),
        ((32, 64, 32.0), "allowed are None, 'auto', 'least' and three whole numbers above 0"),
        ("large", "allowed are None, 'auto', 'least' and three whole numbers above 0"),
    ],
)
def test_sizes_that_do_not_fit_are_an_error_of_the_kernel(block: object, says: str) -> None:
    with pytest.raises(KernelError, match=says) as caught:
        Product((512, 4096, 512), block)
    assert "test_blocks.py" in str(caught.value)


@pytest.mark.parametrize(
    ("block", "begin", "says"),
    [
        (None, (0, 64, 0), "give block='auto', 'least', or their sizes"),
        ("auto", (0, 256, 0), r"must be an element \(m, k, n\) of the product, which is \(64, 256, 64\)"),
        ("auto", (0, -1, 0), r"must be an element \(m, k, n\) of the product"),
        ("auto", (0, 32.0, 0), r"must be an element"),
        ("auto", 7, r"must be an element"),
        ("auto", (32, 0), r"must be an element \(m, k, n\) of the product"),
    ],
)
def test_blocks_begin_inside_of_the_product(block: object, begin: object, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        Product((64, 256, 64), block, begin=begin)


def test_only_products_have_blocks() -> None:
    engine = GraphEngine(two_cubes(), enable_data=False)
    x = place(engine, np.zeros((64, 64), np.float16))

    def kernel(x: int, *, tl: Tl) -> None:
        tl.composite("exp", tl.ref(x, (64, 64), "f16"), x, block="auto")

    with pytest.raises(KernelError, match="block= is for 'gemm'"):
        launch(engine, kernel, x)


# --- several at once --------------------------------------------------------------------------------------------------


def test_a_second_product_gets_panels_as_the_first_frees_them() -> None:
    """With room for the panels of one alone: the second's first panels come while the first works on its last."""
    room = f"pe.tcm.scheduler_reserved_bytes={2 * 2 * (64 + 64) * 64 * 2}"
    one, two = (Product((64, 1024, 64), (64, 64, 64), room, times=times) for times in (1, 2))
    assert two.blocks == ["by blocks of 64×64×64"] * 2
    first, second = [r for r in two.log if r.kind == "gemm" and r.tile is None]
    assert second.t_start < first.t_end
    assert two.ns < 2 * one.ns - 100
    held = 0
    changes = [(r.t_start, 1) for r in two.moves("dma_read", "b")]
    changes += [(r.t_end, -1) for r in two.log if r.kind == "fetch" and r.tile[:2] == (1, 1)]
    for _, change in sorted(changes):
        held += change
        assert held <= 4  # two steps, and those whose read has begun as their place came free


def test_a_streamed_product_behind_one_by_blocks_keeps_its_place() -> None:
    engine = GraphEngine(two_cubes(*IDEAL))
    rng = np.random.default_rng(1)
    a, b = (place(engine, rng.integers(-3, 4, (128, 128)).astype(np.float16)) for _ in range(2))
    c, d = (place(engine, np.zeros((128, 128), np.float16)) for _ in range(2))

    def kernel(a: int, b: int, c: int, d: int, *, tl: Tl) -> None:
        x, y = tl.ref(a, (128, 128), "f16"), tl.ref(b, (128, 128), "f16")
        tl.composite("gemm", x, y, c, block=(64, 64, 64))
        tl.composite("gemm", x, y, d)
        tl.composite("gemm", tl.ref(c, (128, 128), "f16"), y, d, block="auto")  # reads what the first writes

    launch(engine, kernel, a, b, c, d)
    first = fetch(engine, a).astype(np.float32) @ fetch(engine, b).astype(np.float32)
    assert (fetch(engine, c) == first.astype(np.float16)).all()
    second = first.astype(np.float16).astype(np.float32) @ fetch(engine, b).astype(np.float32)
    np.testing.assert_allclose(fetch(engine, d).astype(np.float32), second, rtol=1e-3)


def test_sums_are_shared_with_dots() -> None:
    """A dot's result that waits for the next dot leaves less for the sums of a product between them."""

    def kernel(a: int, c: int, *, tl: Tl) -> None:
        x = tl.load(a, (128, 128), "f16")
        total = tl.dot(x, x, out_dtype="f32")  # 64 KiB, for the next dot alone
        w = tl.ref(a, (128, 128), "f16")
        total = tl.dot(x, x, total, out_dtype="f32")
        tl.composite("gemm", x, w, c, block="auto")
        total = tl.dot(x, x, total, out_dtype="f32")
        tl.store(c, tl.cast(total, "f16"))

    def blocks(acc: str) -> str:
        engine = GraphEngine(two_cubes(*IDEAL, f"pe.gemm.acc_bytes={acc}"), enable_data=False)
        a, c = (place(engine, np.zeros((128, 128), np.float16)) for _ in range(2))
        launch(engine, kernel, a, c)
        (found,) = [r.name for r in engine.op_log if r.name.startswith("composite")]
        return found.removeprefix("composite").strip()

    assert blocks("128KiB") == "by blocks of 128×64×128"
    assert blocks("80KiB") == "by blocks of 64×128×64"  # 16 KiB are left
    assert blocks("64KiB") == ""  # nothing is left: it streams


# --- numbers ----------------------------------------------------------------------------------------------------------

EPILOGUES: dict[str, Callable[[Tl, Any], Sequence[tuple[Any, ...]]]] = {
    "none": lambda tl, x: (),
    "bias": lambda tl, x: (("bias", tl.ref(x, (70,), "f16")), ("scale", 0.5)),
    "add": lambda tl, x: (("add", tl.ref(x, (100, 70), "f16")), ("relu",)),
}


@pytest.mark.parametrize(("epilogue", "staged"), covering(EPILOGUES, every((False, True), (False, True))))
def test_numbers_are_those_of_streaming(epilogue: str, staged: tuple[bool, bool]) -> None:
    made = [
        Product((100, 200, 70), block, data=True, staged=staged, epilogue=EPILOGUES[epilogue])
        for block in (None, "auto", (32, 64, 32), (64, 128, 32))
    ]
    expected, *others = [fetch(each.engine, each.out) for each in made]
    assert expected.any()
    for other in others:
        assert (other == expected).all()


@pytest.mark.parametrize(
    ("of", "shape"),
    covering(["f32", "f16", "bf16", "i8", "f8e4m3", "f8e5m2"], [(1, 1, 1), (33, 65, 31), (130, 300, 70)]),
)
def test_every_type_and_ragged_shapes(of: str, shape: tuple[int, int, int]) -> None:
    streamed, done = (Product(shape, block, of=of, data=True) for block in (None, "auto"))
    assert done.blocks[0].startswith("by blocks of")
    assert (fetch(done.engine, done.out) == fetch(streamed.engine, streamed.out)).all()


def test_transposed_operands() -> None:
    engine = GraphEngine(two_cubes(*IDEAL))
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((200, 100), (70, 200)))
    c = place(engine, np.zeros((100, 70), np.float16))

    def kernel(a: int, b: int, c: int, *, tl: Tl) -> None:
        x = tl.ref(a, (100, 200), "f16", strides=(2, 200))
        y = tl.ref(b, (200, 70), "f16", strides=(2, 400))
        tl.composite("gemm", x, y, c, block="auto")

    launch(engine, kernel, place(engine, a), place(engine, b), c)
    assert (fetch(engine, c) == (a.T.astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16)).all()
