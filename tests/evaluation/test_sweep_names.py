"""Names and units on the pictures of a sweep."""

from __future__ import annotations

import pytest

from kernbench.common.config_keys import list_paths
from kernbench.evaluation.sweep_measure import list_columns
from kernbench.evaluation.sweep_names import Quantity, name_axis, name_column, name_derived
from kernbench.result.run_columns import BOUNDS
from kernbench.topology.builder import resolve_topology
from kernbench.topology.spec import TopologySpec

LONGEST_LABEL = 75


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("sim_ns", "time (ns)"),
        ("launch.ns", "time of the main launch (ns)"),
        ("launch.bound", "bottleneck of the main launch"),
        ("run.path.memory_queue_ns", "memory queue on the path of the run (ns)"),
        ("launch.queues.hbm_ns", "queues of HBM on the path of the main launch (ns)"),
        ("engine.dma_in.occupancy", "occupancy of DMA in (%)"),
        ("phase.h2d.bytes", "data of copies to the machine (bytes)"),
        ("traffic.host_utilisation", "utilisation of the host link (%)"),
    ],
)
def test_columns(column: str, label: str) -> None:
    assert name_column(column).label == label


@pytest.mark.parametrize("column", [name for name, kind in list_columns().items() if kind is not str or name in BOUNDS])
def test_every_column_that_can_be_drawn_has_words(column: str) -> None:
    label = name_column(column).label
    assert "_" not in label
    assert "." not in label
    assert len(label) <= LONGEST_LABEL


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("machine", "machine"),
        ("bench.batch", "batch"),
        ("bench.size_bytes", "size (bytes)"),
        ("cube.hbm.slices", "HBM slices of a cube"),
        ("cube.hbm.num_pcs", "pseudo-channels of a slice"),
        ("system.links.sip_to_sip.bw_gbs", "SIP to SIP bandwidth (GB/s)"),
        ("cube.components.noc_router.attrs.overhead_ns", "NoC router overhead (ns)"),
        ("cube.components.noc_router.attrs.factor", "NoC router factor"),
        ("pe.components.pe_scheduler.attrs.tiles_in_flight", "PE scheduler tiles in flight"),
        ("cube.components.m_cpu.attrs.dma_channels", "management CPU DMA channels"),
        ("cube.sram.banks", "SRAM banks"),
        ("pe.tcm.bytes", "TCM size (bytes)"),
        ("pe.math.bytes_per_ns", "MATH rate (bytes per ns)"),
        ("clocks.pe", "clock of PEs"),
        ("torch.cubes", "PyTorch cubes"),
    ],
)
def test_axes(path: str, label: str) -> None:
    assert name_axis(path).label == label


def test_every_key_of_the_machine_has_words() -> None:
    for path in list_paths(TopologySpec, resolve_topology("default").configured):
        label = name_axis(path).label
        assert "_" not in label, path
        assert label.strip(), path
        assert len(label) <= LONGEST_LABEL, path


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("tokens_s", "tokens/s"),
        ("tokens_per_s", "tokens per s"),
        ("time_s", "time (s)"),
        ("energy_pj", "energy (pJ)"),
        ("used_gbs", "used (GB/s)"),
        ("price", "price"),
        ("rows.per_sip", "rows per sip"),
        ("price_eur", "price eur"),
    ],
)
def test_derived_columns(column: str, label: str) -> None:
    assert name_derived(column).label == label


@pytest.mark.parametrize(
    ("quantity", "largest", "label", "shown"),
    [
        (Quantity("time", "ns"), 1500.0, "time (ns)", 1500.0),
        (Quantity("time", "ns"), 9543.9, "time (µs)", 9.5439),
        (Quantity("time", "ns"), 2.5e6, "time (ms)", 2.5),
        (Quantity("time", "ns"), 0.0, "time (ns)", 0.0),
        (Quantity("data", "bytes"), 2048.0, "data (KiB)", 2.0),
        (Quantity("data", "bytes"), 100.0, "data (bytes)", 100.0),
        (Quantity("occupancy", "%"), 0.25, "occupancy (%)", 25.0),
        (Quantity("tokens/s"), 3.0e6, "tokens/s (millions)", 3.0),
        (Quantity("tokens/s"), 3.0e5, "tokens/s", 3.0e5),
        (Quantity("energy", "pJ"), -4.0e9, "energy (mJ)", -4.0),
    ],
)
def test_the_unit_suits_the_largest_number(quantity: Quantity, largest: float, label: str, shown: float) -> None:
    fitted = quantity.fit([0.0, largest])
    assert fitted.label == label
    assert largest * fitted.factor == pytest.approx(shown)
