"""Units: picoseconds inside, nanoseconds at the surface; 1 GB/s is one byte per ns; KiB and MiB are 1024-based."""

from __future__ import annotations

import re

PS_PER_NS = 1000
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_FACTOR = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _FACTOR[f"{_letter}IB"] = 1024**_power
    _FACTOR[f"{_letter}B"] = 1000**_power
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB")


def ns_to_ps(ns: float) -> int:
    """Convert nanoseconds to integer picoseconds, rounded to the nearest."""
    return round(ns * PS_PER_NS)


def ps_to_ns(ps: int) -> float:
    """Convert integer picoseconds to nanoseconds."""
    return ps / PS_PER_NS


def whole_ps(ns: float) -> float:
    """Round nanoseconds to whole picoseconds; sums of floats have rounding errors below 1 ps."""
    return ps_to_ns(ns_to_ps(ns))


def transfer_ps(nbytes: int, bw_gbs: float) -> int:
    """Return the time in ps to transfer ``nbytes`` at ``bw_gbs`` GB/s, rounded; at least 1 ps for any byte."""
    return max(1, round(nbytes * PS_PER_NS / bw_gbs)) if nbytes else 0


def parse_size(value: int | str) -> int:
    """Return the number of bytes for an integer or a text such as ``"16MiB"``.

    Raises ValueError, which names the allowed units.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    factor = _FACTOR.get(match[2].upper()) if match and not _means_bits(match[2]) else None
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a size; write bytes or a number with one of {', '.join(SIZE_UNITS)}")
    nbytes = float(match[1]) * factor
    if nbytes != int(nbytes):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(nbytes)


def _means_bits(unit: str) -> bool:
    """Return True for ``Gb``, a gigabit. ``gb`` means gigabytes."""
    return unit.endswith("b") and not unit.islower()


def format_size(nbytes: int) -> str:
    """Return a number of bytes as text: 4096 as ``4 KiB``; a number between two multiples has up to two decimals."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.2f}".rstrip("0").rstrip(".") + f" {unit}"
        size /= 1024
    return f"{size:.2f}".rstrip("0").rstrip(".") + " TiB"


def format_ns(ns: float) -> str:
    """Return a time with its unit: ns below 10 µs, then µs, ms, s."""
    for limit, scale, unit in ((1e4, 1.0, "ns"), (1e7, 1e3, "µs"), (1e10, 1e6, "ms")):
        if abs(ns) < limit:
            return f"{ns / scale:,.2f} {unit}"
    return f"{ns / 1e9:,.2f} s"


def is_reported(share: float) -> bool:
    """Return True for a share that is more than 0 % when rounded to whole percent; reports omit smaller ones."""
    return f"{share:.0%}" != "0%"


_KEY_UNITS = {
    "gbs": "GB/s",
    "ns": "ns",
    "ms": "ms",
    "mm": "mm",
    "mm2": "mm²",
    "bytes": "bytes",
    "pj": "pJ",
    "w": "W",
    "pj_per_byte": "pJ per byte",
    "pj_per_byte_mm": "pJ per byte and mm",
    "w_per_mm2": "W per mm²",
}
_PER = re.compile(r"(.+)_per_(ns|mm)")


def unit_of_key(name: str) -> str:
    """Return the unit in the name of a key: ``ns`` for ``launch_ns``, ``macs per ns`` for ``macs_per_ns``."""
    words = name.split("_")
    ends = ("_".join(words[first:]) for first in range(len(words)))
    unit = next((_KEY_UNITS[end] for end in ends if end in _KEY_UNITS), "")
    rate = None if unit.startswith("pJ") else _PER.fullmatch(name)
    if rate is not None:
        return f"{rate[1].replace('_', ' ')} per {rate[2]}"
    return unit or ("bytes" if "bytes" in words else "")
