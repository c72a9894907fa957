"""The sizes of blocks, and the steps that a product takes by them: pure functions."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import F16, DType
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.messages.commands import Command, Epilogue, MemoryRef, Opcode, Params
from kernbench.triton_emu.block_sizes import BlockedProduct, BlockRoom, OperandReads
from kernbench.triton_emu.tile_plans import block_steps, gemm_tiles

TILE = (32, 64, 32)
ROOM = BlockRoom(sums=256 << 10, panels=4 << 20)
HBM = OperandReads(gbs=182.9, latency_ns=60.0)
RATES = {"f32": 1024.0, "f16": 4096.0, "i8": 8192.0}


def product(m: int, k: int, n: int, of: str = "f16", a: OperandReads = HBM, b: OperandReads = HBM) -> BlockedProduct:
    return BlockedProduct((m, k, n), TILE, dtype_of(of).itemsize, RATES[of], a, b)


@pytest.mark.parametrize(
    ("shape", "of", "sizes"),
    [
        ((512, 512, 512), "f16", (128, 256, 128)),  # 128 · 128 / (256 · 2) = 32 >= 1.3 · 4096 / 182.9 = 29.1
        ((4096, 4096, 4096), "f16", (128, 256, 128)),
        ((512, 512, 512), "f32", (64, 128, 64)),
        ((512, 512, 512), "i8", (128, 512, 128)),
        ((64, 1024, 4096), "f16", (64, 64, 704)),  # a few rows: wide blocks; A's short rows are few
        ((32, 1024, 4096), "f16", (32, 64, 2048)),  # what never suffices: as large as the sums allow
        ((416, 512, 416), "f16", (128, 256, 160)),  # 128 of 416 would leave a block of 32
        ((72, 200, 72), "f16", (96, 256, 96)),  # no larger than the product
    ],
)
def test_auto(shape: tuple[int, int, int], of: str, sizes: tuple[int, int, int]) -> None:
    assert product(*shape, of).choose(ROOM) == sizes


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (128, 4096, 512), (40, 512, 4096)])
def test_least_reads_least_of_all_that_fit(shape: tuple[int, int, int]) -> None:
    made = product(*shape)
    sizes = made.choose(ROOM, "least")

    def read_bytes(block: tuple[int, int, int]) -> int:
        (m, k, n), (bm, _, bn) = made.whole_tiles(shape), block
        return (m * -(-n // bn) + n * -(-m // bm)) * k * 2

    assert sizes is not None
    assert made.fits(sizes, ROOM)
    blocks = [made.whole_tiles((32 * i, 64, 32 * j)) for i in range(1, 33) for j in range(1, 129)]
    assert read_bytes(sizes) == min(read_bytes(each) for each in blocks if made.fits(each, ROOM))


def test_auto_is_bound_by_the_room_for_sums_and_for_panels() -> None:
    whole = product(512, 512, 512)
    assert whole.choose(replace(ROOM, sums=16 << 10)) == (64, 256, 64)
    tight = whole.choose(replace(ROOM, panels=64 << 10))
    assert tight is not None
    assert whole.panel_bytes(tight) <= 64 << 10
    assert whole.choose(replace(ROOM, sums=4095)) is None
    assert whole.choose(replace(ROOM, panels=1)) is None


def test_a_slow_memory_takes_larger_blocks_and_a_far_one_longer_panels() -> None:
    slow, far = OperandReads(gbs=91.0, latency_ns=60.0), OperandReads(gbs=182.9, latency_ns=2000.0)
    usual, slower, farther = (product(1024, 2048, 1024, a=x, b=x).choose(ROOM) for x in (HBM, slow, far))
    assert usual == (128, 256, 128)
    assert slower == (256, 256, 256)
    assert farther is not None
    assert (farther[0] + farther[2]) * farther[1] * 2 / 182.9 >= 2000
    assert product(512, 512, 512, a=OperandReads(), b=OperandReads()).choose(ROOM) is None


def test_a_memory_that_gives_short_rows_slowly_takes_whole_ones() -> None:
    """Rows of 2 KiB use all channels: wider blocks where the memory has hardly the time, the usual ones elsewhere."""
    banks = replace(HBM, stripe=2048, piece_share=0.8)
    few = replace(product(64, 256, 4096, a=banks, b=banks), write_ns=2 / 182.9)
    assert few.choose(ROOM) == (64, 64, 1024)
    assert product(512, 512, 512, a=banks, b=banks).choose(ROOM) == (128, 256, 128)
    ragged = replace(banks, piece_share=0.64)
    assert product(319, 481, 462, a=ragged, b=ragged).choose(ROOM) == (160, 256, 160)


# --- steps ------------------------------------------------------------------------------------------------------------


def command(m: int, k: int, n: int, epilogue: tuple[Epilogue, ...] = (), of: DType = F16) -> Command:
    a, b, out = (MemoryRef(at << 32, shape, of) for at, shape in enumerate(((m, k), (k, n), (m, n))))
    return Command(Opcode.GEMM, "composite", 0, 0, (), (a, b), out, Params(epilogue=epilogue))


@st.composite
def products(draw: st.DrawFn) -> tuple[Command, tuple[int, int, int], bool]:
    m, k, n = (draw(st.integers(1, 200)) for _ in range(3))
    bm, bk, bn = (draw(st.integers(1, 4)) * size for size in TILE)
    return command(m, k, n), (bm, bk, bn), draw(st.booleans())


@given(products())
def test_the_tiles_are_those_of_streaming_each_once(case: tuple[Command, tuple[int, int, int], bool]) -> None:
    whole, sizes, keep_a = case
    tiles = [tile for step in block_steps(whole, TILE, sizes, keep_a=keep_a) for tile in step.tiles]
    streamed = {tile.index: tile for tile in gemm_tiles(whole, TILE)}
    assert sorted(tile.index for tile in tiles) == sorted(streamed)
    for tile in tiles:
        like = streamed[tile.index]
        assert (tile.fetch_bytes, tile.macs, tile.store_bytes) == (like.fetch_bytes, like.macs, like.store_bytes)
        assert not tile.reads
        assert tile.write is None


@given(products())
def test_what_is_read_is_freed_and_what_is_made_is_written_once(
    case: tuple[Command, tuple[int, int, int], bool],
) -> None:
    whole, sizes, keep_a = case
    steps = list(block_steps(whole, TILE, sizes, keep_a=keep_a))
    assert sum(step.nbytes for step in steps) == sum(step.freed for step in steps)
    held = 0
    for step in steps:
        held += step.nbytes
        assert held <= (sizes[0] + sizes[2]) * sizes[1] * 2
        held -= step.freed
        ends = [tile.ends_step for tile in step.tiles]
        assert ends == [False] * (len(ends) - 1) + [True]
    (m, k), n = whole.a.shape, whole.b.shape[1]
    parts = [-(-extent // size) for extent, size in zip((m, k, n), sizes, strict=True)]
    read = dict.fromkeys("ab", 0)
    for step in steps:
        for _, window in step.reads:
            read[window.name] += window.nbytes
    kept = parts[1] == 1  # one panel is all of K: it stays for the next block
    a, b = (1 if kept and keep_a else parts[2]), (1 if kept and not keep_a else parts[0])
    assert read == {"a": m * k * 2 * a, "b": k * n * 2 * b}


@given(products())
def test_a_retained_line_is_read_once(case: tuple[Command, tuple[int, int, int], bool]) -> None:
    product, sizes, keep_a = case
    (m, k), n = product.a.shape, product.b.shape[1]
    counts = {"a": 1, "b": -(-m // sizes[0])} if keep_a else {"a": -(-n // sizes[2]), "b": 1}
    held, line = 0, k * (sizes[0] if keep_a else sizes[2])
    read = dict.fromkeys("ab", 0)
    for step in block_steps(product, TILE, sizes, keep_a=keep_a, retains_line=True):
        held += step.nbytes
        assert held <= (line + sizes[1] * (sizes[2] if keep_a else sizes[0])) * 2
        held -= step.freed
        for _, window in step.reads:
            read[window.name] += window.nbytes
    assert not held
    assert read == {"a": m * k * 2 * counts["a"], "b": k * n * 2 * counts["b"]}


def test_the_line_that_fits_is_retained() -> None:
    reads = OperandReads(gbs=100.0), OperandReads(gbs=100.0)
    product = BlockedProduct((128, 768, 4096), (32, 64, 32), 2, 4096.0, *reads)
    room = BlockRoom(1 << 18, 1 << 20)
    assert product.line_of((128, 64, 512), room) is True  # one block of rows: all of A
    assert product.line_of((128, 256, 512), room) is None  # no room
    assert product.line_of((128, 64, 4096), room) is None  # one block: nothing is read again
    columns = replace(product, shape=(4096, 768, 128))
    assert columns.line_of((512, 64, 128), room) is False


@given(products())
def test_parts_of_an_axis_differ_by_a_tile_at_most(case: tuple[Command, tuple[int, int, int], bool]) -> None:
    whole, sizes, keep_a = case
    counts = {name: set() for name in "ab"}
    for step in block_steps(whole, TILE, sizes, keep_a=keep_a):
        for index, window in step.reads:
            counts[window.name].add(index[3] if window.name == "a" else index[4])
    for found in counts.values():
        assert max(found) - min(found) <= 1


def test_rows_of_the_result_leave_when_their_last_tile_is_there() -> None:
    whole = command(96, 128, 64)
    (step,) = block_steps(whole, TILE, (96, 128, 64), keep_a=True)
    results = [(tile.index, tile.result) for tile in step.tiles if tile.result is not None]
    assert [index for index, _ in results] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert [result[1].shape for _, result in results] == [(32, 64)] * 3


def test_the_epilogue_of_a_block_is_read_with_its_last_panels() -> None:
    bias, extra = MemoryRef(1 << 40, (64,), F16), MemoryRef(1 << 41, (64, 64), F16)
    whole = command(64, 256, 64, (Epilogue("bias", bias), Epilogue("add", extra)))
    steps = list(block_steps(whole, TILE, (64, 128, 32), keep_a=True))
    names = [[window.name for _, window in step.reads] for step in steps]
    assert names == [["a", "b"], ["a", "b", "epilogue0", "epilogue1"]] * 2
    shapes = [window.shape for _, window in steps[1].reads]
    assert shapes[2:] == [(32,), (64, 32)]
    assert steps[1].nbytes == sum(prod(shape) * 2 for shape in shapes)
