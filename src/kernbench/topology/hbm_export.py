"""Named timings of HBM as plain rows and as JSON."""

from __future__ import annotations

from kernbench.common.errors import UnknownNameError
from kernbench.common.files import json_text
from kernbench.common.values import value
from kernbench.topology.hbm_spec import PRESETS, HbmTiming, TimingPreset


@value
class TimingRow:
    """A value of a timing: its key, in its unit, and its JEDEC name or what it is."""

    key: str
    value: str
    about: str


_ABOUT_TIMINGS = {
    "stacks": "of a pseudo-channel (PC): ranks, stack IDs",
    "groups": "bank groups of a stack",
    "banks": "of a group",
    "row_bytes": "",
    "burst_bytes": "",
    "pcs_per_channel": "PCs that share row commands and queues",
    "rc_ns": "tRC: from ACT to ACT of a bank",
    "rp_ns": "tRP: from PRE to ACT",
    "rcd_ns": "tRCD: from ACT to a read",
    "rcd_write_ns": "tRCD of writes",
    "cl_ns": "CL: from a read to its first byte",
    "act_ns": "between ACTs of a PC: the larger of tFAW / 4 and tRRD",
    "row_bus_ns": "PRE and ACT on the row bus of a channel",
    "ccd_s_ns": "tCCD_S: a burst",
    "ccd_l_ns": "tCCD_L: a burst in the same group",
    "ccd_r_ns": "tCCD_R: between stacks",
    "rtp_ns": "tRTP: from a read to PRE",
    "cwl_ns": "CWL: from a write to its first byte",
    "wr_ns": "tWR: from the last byte of a write to PRE",
    "rtw_ns": "from a read to a write",
    "wtr_ns": "from a write to a read: CWL, burst and tWTR_L",
    "rfc_ns": "tRFC: a refresh",
    "refi_ns": "tREFI: between refreshes",
    "drain": "of tRC, lost at a refresh, fitted to hbm3",
    "high": "of the queue: writes are drained from here on",
    "low": "of the queue: to here",
}


def preset_named(name: str) -> TimingPreset:
    """Return a preset. UnknownNameError for a name that none has."""
    preset = PRESETS.get(name)
    if preset is None:
        raise UnknownNameError("timing", name, tuple(PRESETS))
    return preset


def preset_facts(preset: TimingPreset) -> list[tuple[str, str]]:
    """Describe a preset in a few words: names and values to print side by side."""
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
    for key, about in _ABOUT_TIMINGS.items():
        given = getattr(timing, key)
        unit = " ns" if key.endswith("_ns") else " B" if key.endswith("_bytes") else ""
        rows.append(TimingRow(key, f"{given:g}{unit}", about))
    return rows


def preset_json(name: str, preset: TimingPreset) -> str:
    """Return a preset as one JSON document."""
    document = {
        "name": name,
        "assumed": preset.assumed,
        "source": preset.source,
        "pin_gbps": preset.pin_gbps,
        "bus_bits": preset.bus_bits,
        "pc_gbs": preset.timing.pc_gbs,
        "config": preset.timing.model_dump(mode="json"),
    }
    return json_text(document, indent=1)
