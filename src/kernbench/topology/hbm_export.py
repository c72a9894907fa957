"""Timing presets of HBM as rows and as plain data."""

from __future__ import annotations

from typing import Any

from kernbench.common.config_keys import meanings_of
from kernbench.common.errors import UnknownNameError
from kernbench.common.values import value
from kernbench.topology.hbm_spec import PRESETS, HbmTiming, TimingPreset


@value
class TimingRow:
    """A value of a timing: its key, its value with unit, and its JEDEC name or meaning."""

    key: str
    value: str
    about: str


def preset_named(name: str) -> TimingPreset:
    """Return the preset called ``name``. Raises UnknownNameError for an unknown name."""
    preset = PRESETS.get(name)
    if preset is None:
        raise UnknownNameError("timing", name, tuple(PRESETS))
    return preset


def preset_facts(preset: TimingPreset) -> list[tuple[str, str]]:
    """Return a short description of a preset as (name, value) rows."""
    timing, peak = preset.timing, preset.timing.pc_gbs
    return [
        ("source", preset.source),
        *([("assumed", "all but the data rate")] if preset.assumed else []),
        ("peak of a PC", f"{peak:g} GB/s: {preset.bus_bits} bits of {preset.pin_gbps:g} Gb/s"),
        ("of a channel", f"{timing.pcs_per_channel * peak:g} GB/s, {timing.pcs_per_channel} PC"),
        ("refresh", f"takes {timing.refresh_share:.1%} of the time"),
    ]


def timing_rows(timing: HbmTiming) -> list[TimingRow]:
    """Return all values of a timing with their units."""
    rows = []
    for key, about in meanings_of(HbmTiming).items():
        quantity = getattr(timing, key)
        unit = " ns" if key.endswith("_ns") else " B" if key.endswith("_bytes") else ""
        text = "null" if quantity is None else f"{quantity:g}{unit}"
        rows.append(TimingRow(key, text, about.removesuffix(".")))
    return rows


def preset_document(name: str, preset: TimingPreset) -> dict[str, Any]:
    """Return a preset as plain data."""
    return {
        "name": name,
        "assumed": preset.assumed,
        "source": preset.source,
        "pin_gbps": preset.pin_gbps,
        "bus_bits": preset.bus_bits,
        "pc_gbs": preset.timing.pc_gbs,
        "config": preset.timing.model_dump(mode="json"),
    }
