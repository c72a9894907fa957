"""The cost of coarse packets in accuracy: measured errors of four workloads, and the remark on a run that has them.

``scripts/coarse_packets.py`` measures the figures, on the default machine.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TypeAlias

from kernbench.common.units import format_size
from kernbench.common.values import value

FIGURES = resources.files("kernbench") / "defaults" / "coarse_packets.json"
PAGE = "docs/performance.md, Coarse packets"


@value
class PacketFigures:
    """The simulated time in ns and the number of events of a workload with packets of one size."""

    ns: float
    events: int


Measured: TypeAlias = dict[str, dict[int, PacketFigures]]
"""Figures by workload and packet size in bytes; the smallest size is that of the default machine"""


def read_measured() -> Measured:
    """Return the measured figures."""
    content = json.loads(FIGURES.read_text(encoding="utf-8"))
    return {
        workload: {int(size): PacketFigures(**row) for size, row in rows.items()} for workload, rows in content.items()
    }


def errors_at(measured: Measured, size: int) -> list[float]:
    """Return the errors in % of all workloads with packets of ``size`` bytes, relative to the smallest packets."""
    return [100 * (rows[size].ns / rows[min(rows)].ns - 1) for rows in measured.values()]


def describe_packets(packet_bytes: int, file_bytes: int) -> str:
    """Return a remark on a run with packets of ``packet_bytes``, on a machine whose file has ``file_bytes``.

    The remark quotes the errors of the next size that was measured.
    """
    text = f"packets of {format_size(packet_bytes)}, the machine's have {format_size(file_bytes)}"
    if packet_bytes < file_bytes:
        return f"{text}: times are finer, and events more"
    measured = read_measured()
    sizes = sorted(next(iter(measured.values())))
    size = next((size for size in sizes[1:] if size >= packet_bytes), sizes[-1])
    errors = errors_at(measured, size)
    qualifier = "" if size == packet_bytes else f" at {format_size(size)}"
    span = f"{min(errors):+.1f} to {max(errors):+.1f} %"
    return f"{text}: times of {len(errors)} workloads differ{qualifier} by {span} ({PAGE})"
