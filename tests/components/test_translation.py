"""What a TLB costs, by hand: 100 ns a walk, pages of 4 KiB, which the DMA moves in 16 ns (256 GB/s)."""

from __future__ import annotations

import numpy as np
import pytest

from causes import check_causes
from engine_support import Placed, place
from kernbench.components.pe_mmu import PeMmuPart
from kernbench.core.log import END, KIND, START, WIDTH, By, Kind
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MmuUnmapMsg
from kernbench.observe.critical_path_model import PathPart
from kernbench.runtime_api.launch_report import report_run
from kernbench.triton_emu.tl_context import TLContext as Tl
from path_support import check_request, run, watched

PAGE = 4096
WALK, FURTHER = 100_000, 100_000 - 16_000


def tlb(entries: int, *more: str) -> tuple[str, ...]:
    return f"pe.mmu={{page_bytes: {PAGE}, tlb_entries: {entries}, tlb_miss_ns: 100}}", *more


def array_of(engine: GraphEngine, pages: int) -> Placed:
    """An array that begins with a page."""
    placed = place(engine, np.zeros(pages * PAGE, np.int8))
    assert placed.va % PAGE == 0
    return placed


def took(overrides: tuple[str, ...], kernel: object, pages: int) -> tuple[int, GraphEngine]:
    engine = watched(*overrides)
    handle = run(engine, kernel, array_of(engine, pages))  # type: ignore[arg-type]
    check_causes(engine.machine)
    return handle.ended_ps - handle.submitted_ps, engine


def of_kind(engine: GraphEngine, kind: Kind, column: int) -> list[int]:
    rows = engine.machine.log.rows
    return [rows[row + column] for row in range(0, len(rows), WIDTH) if rows[row + KIND] == kind]


def one_page(p: int, *, tl: Tl) -> None:
    tl.load(p + 8, 100, "i8")


def three_pages(p: int, *, tl: Tl) -> None:
    tl.load(p + PAGE - 1, PAGE + 2, "i8")


def same_page_later(p: int, *, tl: Tl) -> None:
    tl.store(p + 64, tl.load(p, 64, "i8"))


def a_column(p: int, *, tl: Tl) -> None:
    """Eight rows of 64 bytes, two in each of four pages."""
    tl.load(p, (8, 64), "i8", strides=(PAGE // 2, 1))


@pytest.mark.parametrize(
    ("kernel", "misses", "hits", "more_ps"),
    [
        (one_page, 1, 0, WALK),
        (three_pages, 3, 0, WALK + 2 * FURTHER),
        (same_page_later, 1, 1, WALK),
        (a_column, 4, 0, WALK + 3 * FURTHER),
    ],
)
def test_pages_that_are_missed_cost_walks(kernel: object, misses: int, hits: int, more_ps: int) -> None:
    without, plain = took((), kernel, 4)
    found, engine = took(tlb(8), kernel, 4)
    assert found - without == more_ps
    translation = report_run(engine).translation
    assert translation is not None
    assert (translation.hits, translation.misses) == (hits, misses)
    assert report_run(plain).translation is None


def test_a_walk_that_is_quicker_than_a_page_is_hidden_behind_the_page_before() -> None:
    """10 ns for the first page, none for the others, which take 16 ns each to be moved."""
    quick = "pe.mmu={page_bytes: 4096, tlb_entries: 8, tlb_miss_ns: 10}"
    assert took((quick,), three_pages, 3)[0] - took((), three_pages, 3)[0] == 10_000


def two_pages(p: int, *, tl: Tl) -> None:
    tl.load(p, 64, "i8")
    tl.load(p + PAGE, 64, "i8")
    tl.load(p + 64, 64, "i8")


def test_a_walk_holds_its_descriptor_and_no_other() -> None:
    """Issued 1 ns apart: two walks overlap, and a descriptor whose page is known (looked up) overtakes both."""
    _, engine = took(tlb(8), two_pages, 2)
    first, second = of_kind(engine, Kind.TRANSLATION, START)
    assert second == first + 1000
    assert of_kind(engine, Kind.TRANSLATION, END) == [first + WALK, second + WALK]
    # The third is set up 2 ns after the first was issued; set-ups (2 ns) of the others follow their walks.
    assert of_kind(engine, Kind.DMA_READ, START) == [first + 2000, first + WALK, first + WALK + 2000]


def over_and_over(p: int, *, tl: Tl) -> None:
    for page in (0, 1, 0, 1):
        tl.store(p + page * PAGE + 64, tl.load(p + page * PAGE, 64, "i8"))
        tl.barrier()


def test_with_one_entry_two_pages_push_each_other_out() -> None:
    """Loads and stores alternate: each load misses, its store finds the page."""
    _, engine = took(tlb(1, "pe.components.pe_cpu.attrs.issue_ns=5000"), over_and_over, 2)
    translation = report_run(engine).translation
    assert translation is not None
    assert (translation.hits, translation.misses) == (4, 4)


def test_unmapping_clears_it() -> None:
    engine = watched(*tlb(8))
    placed, other = array_of(engine, 1), array_of(engine, 1)
    run(engine, one_page, placed)
    run(engine, one_page, placed)
    part = engine.machine.part("sip0.cube0.pe0.pe_mmu", PeMmuPart)
    assert part.tlb is not None
    assert (part.tlb.hits, part.tlb.misses) == (1, 1)
    engine.wait(engine.submit(MmuUnmapMsg(sip=0, va_base=other.va)))
    run(engine, one_page, placed)
    assert (part.tlb.hits, part.tlb.misses) == (1, 2)
    array_of(engine, 1)  # it is mapped
    run(engine, one_page, placed)
    assert (part.tlb.hits, part.tlb.misses) == (1, 3)


def tiles(p: int, *, tl: Tl) -> None:
    a, b = (tl.ref(p + page * PAGE, (32, 64), "f16") for page in (0, 1))
    tl.composite("gemm", a, tl.ref(b.va, (64, 32), "f16"), p + 2 * PAGE)


def test_tiles_are_translated_too_and_the_path_says_so() -> None:
    """A and B are a page each, walked side by side; the output's walk comes after the product."""
    engine = watched(*tlb(8))
    handle = run(engine, tiles, array_of(engine, 3))
    assert len(of_kind(engine, Kind.TRANSLATION, START)) == 3
    # B's descriptor is set up behind A's, which began when the walks were over.
    assert check_causes(engine.machine)[By.TRANSLATION] == 2
    assert check_request(engine, handle)[PathPart.TRANSLATION] == 2 * WALK
