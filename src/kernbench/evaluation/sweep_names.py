"""Names and units for readers: labels of the columns and axes of a sweep, such as ``time (µs)`` for ``sim_ns``.

A quantity is scaled to the unit that suits its largest number. The label of a machine's key is the key's own
description if that is short, else words from its path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from kernbench.common.config_keys import describe_key
from kernbench.common.errors import KernbenchError
from kernbench.common.units import unit_of_key
from kernbench.common.values import value
from kernbench.evaluation.sweep_spec import MACHINE
from kernbench.observe.works import PE_ENGINES
from kernbench.result.run_columns import CAUSES, slug
from kernbench.runtime_api.overrides import part_of
from kernbench.topology.resources import BUILTIN_RESOURCES
from kernbench.topology.spec import TopologySpec

LONGEST_MEANING = 45
_GROUPS = {"launch": "main launch", "run": "run"}
_CAUSES: Mapping[str, str] = {slug(name): str(name) for name in (*CAUSES, *BUILTIN_RESOURCES)}
_ENGINES: Mapping[str, str] = {slug(name): str(name) for name in PE_ENGINES}
_PHASES = {"h2d": "copies to the machine", "d2h": "copies to the host", "launch": "launches", "dma": "DMA requests"}
_COLUMNS: Mapping[str, tuple[str, str]] = {
    "sim_ns": ("time", "ns"),
    "load_ns": ("initialisation time", "ns"),
    "events": ("events of the simulator", ""),
    "transfers": ("transfers", ""),
    "records": ("log records", ""),
    "max_abs_error": ("largest absolute error", ""),
    "max_rel_error": ("largest relative error", ""),
    "values_read": ("values that the program read", ""),
    "zeros_read": ("zeros in place of values", ""),
    "launch.pes": ("PEs of the main launch", ""),
    "launch.ns": ("time of the main launch", "ns"),
    "launch.kernel_ns": ("kernel time of the main launch", "ns"),
    "traffic.hbm_in_bytes": ("data into HBM", "bytes"),
    "traffic.hbm_out_bytes": ("data out of HBM", "bytes"),
    "traffic.to_machine_bytes": ("data to the machine", "bytes"),
    "traffic.from_machine_bytes": ("data from the machine", "bytes"),
    "traffic.host_utilisation": ("utilisation of the host link", "%"),
    "energy.pj": ("dynamic energy", "pJ"),
    "energy.static_pj": ("static energy of used dies", "pJ"),
    "energy.total_pj": ("energy", "pJ"),
    "energy.watts": ("average power", "W"),
    "energy.pj_per_mac": ("dynamic energy of a MAC", "pJ"),
    "energy.edp": ("energy × delay", "J s"),
    "area.mm2": ("area", "mm²"),
    "used.sips": ("SIPs in use", ""),
    "used.cubes": ("cubes in use", ""),
    "used.pes": ("PEs in use", ""),
    "used.slices": ("HBM slices in use", ""),
}
_OF_GROUP: Mapping[str, tuple[str, str]] = {
    "bound": ("bottleneck of the {}", ""),
    "bound_ns": ("least time of the {}", "ns"),
    "beyond": ("time of the {} beyond its bound", "%"),
    "useful_macs": ("useful MACs of the {}", ""),
}
_TIMES: Mapping[str, str] = {
    "path": "{cause} on the path of the {group}",
    "resources": "{cause} on the path of the {group}",
    "queues": "queues of {cause} on the path of the {group}",
    "bounds": "least time of {cause} in the {group}",
}
_OF_ENGINE: Mapping[str, tuple[str, str]] = {
    "busy_ns": ("busy time of {}", "ns"),
    "occupancy": ("occupancy of {}", "%"),
    "records": ("records of {}", ""),
}
_OF_PHASE: Mapping[str, tuple[str, str]] = {"busy_ns": ("time with {}", "ns"), "bytes": ("data of {}", "bytes")}
_SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")),
    "bytes": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes")),
    "%": ((0.01, "%"),),
    "pJ": ((1e12, "J"), (1e9, "mJ"), (1e6, "µJ"), (1e3, "nJ"), (1.0, "pJ")),
}
_LARGE = ((1e12, "trillions"), (1e9, "billions"), (1e6, "millions"))
LEAST_IN_UNIT = 2.0
"""The largest number of a quantity is at least this many of its unit, if there is a smaller unit"""
_SUFFIXES = {
    "ns": "ns",
    "us": "µs",
    "ms": "ms",
    "gbs": "GB/s",
    "bytes": "bytes",
    "mm": "mm",
    "j": "J",
    "pj": "pJ",
    "nj": "nJ",
    "w": "W",
}
_WORDS = {
    "bw": "bandwidth",
    "cpu": "CPU",
    "ctrl": "controller",
    "dma": "DMA",
    "fifo": "FIFO",
    "gemm": "GEMM",
    "hbm": "HBM",
    "io": "IO",
    "ipcq": "queue",
    "m_cpu": "management CPU",
    "macs": "MACs",
    "math": "MATH",
    "noc": "NoC",
    "pcie": "PCIe",
    "pcie_ep": "PCIe endpoint",
    "pcs": "pseudo-channels",
    "pe": "PE",
    "pes": "PEs",
    "sip": "SIP",
    "size_mm": "size",
    "sips": "SIPs",
    "sram": "SRAM",
    "tcm": "TCM",
    "torch": "PyTorch",
    "triton": "Triton",
    "ucie": "UCIe",
    "xbar": "crossbar",
}


@value
class Quantity:
    """A quantity of a picture: its name, its unit, and the factor from the numbers of the table to this unit."""

    name: str
    unit: str = ""
    factor: float = 1.0

    @property
    def label(self) -> str:
        """The name with the unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def fit(self, numbers: Iterable[float]) -> Quantity:
        """Return the quantity in the unit that suits its largest number."""
        largest = max(map(abs, numbers), default=0.0)
        scales = _SCALES.get(self.unit) or self._plain_scales()
        size, unit = next((scale for scale in scales if largest >= LEAST_IN_UNIT * scale[0]), scales[-1])
        return Quantity(self.name, unit, self.factor / size)

    def _plain_scales(self) -> tuple[tuple[float, str], ...]:
        """Return the scales of a quantity without larger units: counts in words."""
        of_unit = f" of {self.unit}" if self.unit else ""
        return (*((size, f"{word}{of_unit}") for size, word in _LARGE), (1.0, self.unit))


def name_column(column: str) -> Quantity:
    """Return the quantity of a measured column, in the unit of the table."""
    group, _, rest = column.partition(".")
    middle, _, last = rest.rpartition(".")
    if column in _COLUMNS:
        return Quantity(*_COLUMNS[column])
    if group == "engine" and last in _OF_ENGINE:
        return _fill(_OF_ENGINE[last], _ENGINES.get(middle, _say(middle)))
    if group == "phase" and last in _OF_PHASE:
        return _fill(_OF_PHASE[last], _PHASES.get(middle, f"{_say(middle)} requests"))
    if group in _GROUPS and rest in _OF_GROUP:
        return _fill(_OF_GROUP[rest], _GROUPS[group])
    if group in _GROUPS and middle in _TIMES:
        cause = last.removesuffix("_ns")
        name = _TIMES[middle].format(cause=_CAUSES.get(cause, _say(cause)), group=_GROUPS[group])
        return Quantity(name, "ns")
    return Quantity(_say(column.replace(".", " ")))


def _fill(named: tuple[str, str], subject: str) -> Quantity:
    text, unit = named
    return Quantity(text.format(subject), unit)


def name_derived(column: str) -> Quantity:
    """Return the name and the unit in a derived column: ``tokens/s`` for ``tokens_s``, ``cost (J)`` for ``cost_j``."""
    words, _, suffix = column.replace(".", "_").rpartition("_")
    if not words or words.endswith("_per"):
        return Quantity(column.replace(".", " ").replace("_", " "))
    name = words.replace("_", " ")
    if suffix == "s":
        return Quantity(name, "s") if words.endswith("time") else Quantity(f"{name}/s")
    return Quantity(name, _SUFFIXES[suffix]) if suffix in _SUFFIXES else Quantity(f"{name} {suffix}")


@cache
def name_axis(path: str) -> Quantity:
    """Return the quantity of an axis: its short description, or words from its path, and its unit."""
    if path == MACHINE:
        return Quantity(path)
    steps = [step for step in re.sub(r"\[(\d+)\]", r".\1", path).split(".") if step not in _SECTIONS]
    unit = unit_of_key(steps[-1])
    meaning = _short_meaning(path)
    if meaning:
        return Quantity(meaning, unit)
    section = [] if part_of(path) == "bench" else [_say(step) for step in steps[-2:-1]]
    return Quantity(" ".join([*section, _without_unit(steps[-1], unit)]), unit)


def _without_unit(step: str, unit: str) -> str:
    """Return the last step of a path as words without its unit: ``bandwidth`` for ``bw_gbs``."""
    if unit.replace(" ", "_") == step:
        return "size" if unit == "bytes" else "rate"
    words = step.rpartition("_")[0] if unit in ("GB/s", "ns", "mm") else step
    return _say(words.removeprefix("num_").removesuffix("_bytes"))


_SECTIONS = ("components", "attrs", "links")
"""Steps of paths that say nothing about the key, and whose entries share their descriptions"""


def _short_meaning(path: str) -> str:
    """Return the first clause of the description of a machine's key; empty if it is long, or the same for many keys."""
    if part_of(path) != "machine" or any(f".{section}." in path for section in _SECTIONS):
        return ""
    try:
        meaning = describe_key(TopologySpec, path).meaning
    except KernbenchError:  # a key of a user's part
        return ""
    clause = re.split(r"[:;,.(]", meaning)[0].strip()
    if " " not in clause or len(clause) > LONGEST_MEANING or clause.startswith("Number of"):
        return ""
    return clause if clause[1].isupper() else clause[0].lower() + clause[1:]


def _say(text: str) -> str:
    return _WORDS.get(text) or " ".join(_WORDS.get(word, word) for word in text.split("_"))
