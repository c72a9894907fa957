"""The ideal pipeline: its formula, where its constants come from, and that no kernel beats it."""

from __future__ import annotations

import pytest
from gemm_support import ideal, kernel_ns
from hypothesis import given
from hypothesis import strategies as st

from compiled import SPREAD
from covering import covering
from ideal_memory import IDEAL
from kernbench.common.dtypes import BF16, F32
from kernbench.evaluation.gemm_shapes import LARGEST, SHAPES, VARIANTS, GemmShape

TILE = (32, 64, 32)
ONE_TILE = GemmShape(*TILE)
FAST_MEMORY = (*IDEAL, "cube.components.hbm_ctrl.attrs.access_ns=0", "pe.dma.setup_ns=0")


def floors(shape, variant, *overrides):
    return {floor.stage: floor for floor in ideal(shape, variant, *overrides).floors}


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_whole_tile_alone_takes_exactly_that(variant):
    assert ideal(ONE_TILE, variant, *IDEAL).ns == kernel_ns(ONE_TILE, variant, *IDEAL)


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("variant", ["ref_ref", "load_ref", "load_load"])
def test_equal_tiles_take_the_longest_stage_each_and_one_tile_alone(variant, count):
    # K is that of a tile, so that every tile passes every stage: DMA in, fetch, GEMM, store, DMA out.
    streamed = {"ref_ref": 8192, "load_ref": 4096, "load_load": 0}[variant]
    stages = [streamed / 204.8, 8192 / 512, 32 * 64 * 32 / 4096, 2048 / 512, 2048 / 204.8]
    found = floors(GemmShape(32 * count, 64, 32), variant, *IDEAL)
    one = ideal(ONE_TILE, variant, *IDEAL)
    alone = one.ns - one.start_ns - one.load_ns
    least = max(floor.ns for stage, floor in found.items() if stage != "HBM slice")
    assert least == pytest.approx((count - 1) * max(stages) + alone)
    assert found["HBM slice"].busy_ns == count * (stages[0] + stages[-1])


def test_its_parts_of_one_tile():
    found = ideal(ONE_TILE, "ref_ref", *FAST_MEMORY)
    busy = {floor.stage: floor.busy_ns for floor in found.floors}
    assert busy == {
        "issue": 1,
        "DMA in": 8192 / 204.8,
        "fetch": 16,
        "GEMM": 16,
        "store": 4,
        "DMA out": 10,
        "HBM slice": 50,
    }
    assert found.start_ns == 5 + 1
    assert found.load_ns == 0


@pytest.mark.parametrize(
    ("override", "stage", "busy_ns"),
    [
        ("pe.gemm.macs_per_ns.f16=1024", "GEMM", 64),
        ("pe.tcm.read_bw_gbs=256", "fetch", 32),
        ("pe.tcm.write_bw_gbs=256", "store", 8),
        ("cube.components.hbm_ctrl.attrs.efficiency=0.4", "DMA in", 80),
        ("cube.links.pe_to_xbar.bw_gbs=102.4", "DMA in", 80),
        ("cube.links.xbar_to_hbm.bw_gbs=512", "DMA in", 32),
        ("pe.components.pe_scheduler.attrs.issue_ns=3", "issue", 3),
        ("pe.gemm.tile_n=16", "GEMM", 16),
    ],
)
def test_constants_come_from_the_topology(override, stage, busy_ns):
    assert floors(ONE_TILE, "ref_ref", *IDEAL, override)[stage].busy_ns == busy_ns


def test_latencies_come_from_the_topology():
    slow = (
        *IDEAL,
        "cube.components.hbm_ctrl.attrs.access_ns=130",
        "pe.dma.setup_ns=12",
        "pe.components.pe_cpu.attrs.launch_ns=6",
    )
    # Two transfers: in and out.
    assert ideal(ONE_TILE, "ref_ref", *slow).ns - ideal(ONE_TILE, "ref_ref", *IDEAL).ns == pytest.approx(
        2 * (100 + 10) + 1
    )


def test_the_largest_is_bound_as_the_roofline_says():
    shape = GemmShape(512, 512, 512)
    assert ideal(shape, "ref_ref", *IDEAL).longest == "HBM slice"
    assert floors(shape, "ref_ref", *IDEAL)["HBM slice"].busy_ns == 2048 * 40 + 256 * 10
    assert ideal(shape, "load_load", *IDEAL).longest == "fetch and GEMM"
    assert ideal(shape, "load_load", *IDEAL).load_ns > 2 * 512 * 512 * 2 / 204.8


def test_banks_keep_writes_for_later():
    assert ideal(GemmShape(512, 512, 512), "ref_ref").longest == "DMA in and HBM slice"


PERIOD, OUTAGE = 3900, 350 + 16.3 + 19.4 + 0.7 * 45
PEAK_GBS = 8 * 25.6


def test_reads_take_the_outages_that_no_run_avoids():
    """At peak: a period, then an outage and what is left of a period, again and again."""
    shape, never = GemmShape(512, 512, 512), "cube.hbm.refresh=none"
    peak = 2048 * 8192 / PEAK_GBS
    outages = (peak - OUTAGE) // (PERIOD - OUTAGE)
    assert floors(shape, "ref_ref")["DMA in"].busy_ns == pytest.approx(peak + outages * OUTAGE)
    whole = 2 * 512 * 512 * 2 / PEAK_GBS
    load_ns = ideal(shape, "load_load", never).load_ns
    assert ideal(shape, "load_load").load_ns == pytest.approx(load_ns + (whole - OUTAGE) // (PERIOD - OUTAGE) * OUTAGE)
    assert ideal(shape, "load_load", SPREAD).load_ns == pytest.approx(load_ns + whole * OUTAGE / (PERIOD - OUTAGE))


def test_a_short_product_is_read_at_peak():
    """Outages may come before it and after it."""
    found = floors(ONE_TILE, "ref_ref")["DMA in"].busy_ns
    assert found == floors(ONE_TILE, "ref_ref", "cube.hbm.refresh=none")["DMA in"].busy_ns == 8192 / PEAK_GBS


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_no_kernel_of_the_evaluation_is_faster(shape, variant):
    assert kernel_ns(shape, variant) >= ideal(shape, variant).ns


@pytest.mark.parametrize("shape", [GemmShape(8, 256, 256), GemmShape(128, 256, 128), ONE_TILE], ids=str)
def test_staged_operands_leave_nothing_to_wait_for(shape):
    assert kernel_ns(shape, "load_load", *IDEAL) == ideal(shape, "load_load", *IDEAL).ns


@pytest.mark.parametrize(
    "shape",
    [ONE_TILE, GemmShape(8, 256, 256), GemmShape(128, 256, 128), GemmShape(256, 512, 256), LARGEST],
    ids=str,
)
def test_whole_blocks_take_exactly_the_closed_form(shape):
    assert kernel_ns(shape, "blocked", *IDEAL) == ideal(shape, "blocked", *IDEAL).ns


def test_blocks_by_hand():
    """256³ in 2 × 2 blocks of 128, K in one panel of 64 KiB, of which A's stays: panels, first and last block."""
    found = ideal(GemmShape(256, 256, 256), "blocked", *FAST_MEMORY)
    way, header, panel = 2.039, 32 / 256, 128 * 256 * 2 / 204.8
    first = way + header + 2 * panel + way + 1 + 16  # both panels, issue, fetch
    last = 4 + way + 32 * 256 / 204.8 + way + header  # store; the last row of tiles, 256 bytes long
    assert found.ns == pytest.approx(6 + first + 4 * 4 * 4 * 4 * 16 + last, abs=0.01)
    assert {each.stage: each.busy_ns for each in found.floors} == pytest.approx(
        {
            "GEMM": 4096,
            "fetch": 4096,
            "store": 256,
            "DMA in": 6 * panel,
            "DMA out": 256 * 256 * 2 / 204.8,
            "HBM slice": 6 * panel + 256 * 256 * 2 / 204.8,
        },
        abs=0.01,
    )


ROWS_NS = 16.3 + 19.4
"""To close a row and to open one: the first panels wait for it, and the closed form knows of no rows"""


MEMORIES = {"banks": (), "spread": (SPREAD,), "ideal": IDEAL}


@pytest.mark.parametrize(
    ("shape", "memory"),
    covering(
        [
            *SHAPES,
            GemmShape(64, 512, 2048),
            GemmShape(1024, 64, 1024),
            GemmShape(500, 300, 700),
            GemmShape(416, 512, 416),
        ],
        MEMORIES,
    ),
    ids=str,
)
def test_products_by_blocks_are_near_the_closed_form(shape, memory):
    overrides = MEMORIES[memory]
    least, measured = ideal(shape, "blocked", *overrides).ns, kernel_ns(shape, "blocked", *overrides)
    assert least <= measured <= 1.1 * least + (0 if overrides == IDEAL else ROWS_NS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        GemmShape(*extents)
        for extents in (
            (64, 256, 4096),
            (256, 64, 4096),
            (4096, 256, 64),
            (1024, 64, 1024),
            (1024, 1024, 64),
            (160, 1600, 160),
            (319, 481, 462),
            (179, 1841, 246),
            (1000, 65, 1000),
            (194, 187, 1865),
            (512, 512, 512),
        )
    ],
    ids=str,
)
@pytest.mark.parametrize(("refresh", "most"), [("spread", 1.15), ("all-bank", 1.2)])
def test_products_by_blocks_are_near_what_no_machine_avoids(shape, refresh, most):
    """Of 10 µs and more: the matrix unit's time for whole tiles, or that of reading and writing everything once.

    Rows of B that lie a multiple of 8 KiB apart are all of one bank group: the stacks take turns there, tCCD_R apart.
    """
    compute = shape.tile_count(TILE) * 16
    b_gbs = 182.9 * (1.25 / 1.9 if shape.n * 2 % 8192 == 0 else 1)
    traffic = 2 * (shape.m * shape.k + shape.m * shape.n) / 182.9 + 2 * shape.k * shape.n / b_gbs
    assert kernel_ns(shape, "blocked", f"cube.hbm.refresh={refresh}") <= most * max(compute, traffic)


def test_without_room_for_blocks_the_ideal_is_that_of_streaming():
    no_room = "pe.tcm.scheduler_reserved_bytes=1"
    shape = GemmShape(128, 256, 128)
    assert ideal(shape, "blocked", no_room) == ideal(shape, "ref_ref", no_room)


EXTENTS = st.integers(1, 150)
MACHINES = st.sampled_from(
    [
        (),
        (SPREAD,),
        ("pe.components.pe_scheduler.attrs.tiles_in_flight=1",),
        ("pe.components.pe_scheduler.attrs.tiles_in_flight=16", "pe.components.pe_scheduler.attrs.stage_slots=8"),
        ("cube.links.pe_to_xbar.bw_gbs=64",),
        IDEAL,
        (*IDEAL, "cube.links.xbar_to_hbm.bw_gbs=1024", "cube.hbm.channel_hash=mod"),
        (
            "cube.hbm.timing=hbm2",
            "cube.hbm.mapping=RoBaRaCoCh",
            "cube.hbm.burst_bytes=null",
            "cube.hbm.channel_hash=null",
        ),
        ("cube.components.hbm_ctrl.attrs.access_ns=0", "pe.dma.setup_ns=0", "transport.packet_bytes=256"),
        ("pe.gemm.tile_m=16", "pe.gemm.tile_k=16", "pe.tcm.read_bw_gbs=100", "pe.tcm.write_bw_gbs=3"),
    ]
)


@given(
    shape=st.builds(GemmShape, EXTENTS, EXTENTS, EXTENTS),
    variant=st.sampled_from(VARIANTS),
    overrides=MACHINES,
    dtype=st.sampled_from([F32, BF16]),
)
def test_no_kernel_is_faster(shape, variant, overrides, dtype):
    least = ideal(shape, variant, *overrides, dtype=dtype)
    # Times of tiles are rounded to a ps each.
    rounding_ns = 0.001 * sum(1 for _ in shape.tiles(TILE)) * 8
    assert kernel_ns(shape, variant, *overrides, dtype=dtype) >= least.ns - rounding_ns
