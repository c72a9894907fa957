"""Differences between two machines and programs in an architect's terms, and their use by the program.

Machines of different designs differ in dozens of keys. ``say_machines`` summarises most of them in headlines, in the
order of a machine summary. The table of ``kernbench compare`` has every key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from kernbench.common import dtypes
from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.evaluation.compare_inputs import CCL_PREFIX, ResultFigures, ResultPair
from kernbench.runtime_api.overrides import BENCH_PREFIX, FRONTEND_PREFIXES
from kernbench.topology.hbm_spec import PRESETS

Configuration: TypeAlias = Mapping[str, Any]
_Headline: TypeAlias = str | Callable[[Configuration], str]

ENERGY_PREFIX = "energy."
MOST_NAMED = 8
"""Maximum number of parameters that are named individually"""


@value
class Differing:
    """A parameter that differs. Each side has its values over all pairs; empty without the parameter.

    ``unused``: the component of the parameter if no result uses that component, else empty. It is also empty if the
    results do not record their use.
    """

    path: str
    a: tuple[Any, ...]
    b: tuple[Any, ...]
    unused: str = ""

    @property
    def of_machine(self) -> bool:
        """True for a parameter of the machine's time, not of its energy, the bench, collectives or a front end."""
        return not f"{self.path}.".startswith((BENCH_PREFIX, CCL_PREFIX, ENERGY_PREFIX, *FRONTEND_PREFIXES))

    @property
    def of_energy(self) -> bool:
        """True for an energy, power or area of the machine."""
        return f"{self.path}.".startswith(ENERGY_PREFIX)

    def __str__(self) -> str:
        return f"{self.path} {_few(self.a)} → {_few(self.b)}"


def find_differing(pairs: Sequence[ResultPair]) -> tuple[Differing, ...]:
    """Return the parameters that differ between the results of a pair.

    Parameters of collectives are included only if all results have them, and so are energies.
    """
    results = [result for pair in pairs for result in pair]
    paths = dict.fromkeys(path for result in results for path in result.configuration)
    if not all(any(path.startswith(CCL_PREFIX) for path in result.configuration) for result in results):
        paths = dict.fromkeys(path for path in paths if not path.startswith(CCL_PREFIX))
    if not all(any(path.startswith(ENERGY_PREFIX) for path in result.configuration) for result in results):
        paths = dict.fromkeys(path for path in paths if not path.startswith(ENERGY_PREFIX))
    differing = (path for path in paths if not all(_has_same(path, one, other) for one, other in pairs))
    (ours, theirs), use = zip(*pairs, strict=True), _sum_use(pairs)
    return tuple(
        Differing(path, _values(ours, path), _values(theirs, path), _name_unused(path, use, results) if use else "")
        for path in differing
    )


def _has_same(path: str, one: ResultFigures, other: ResultFigures) -> bool:
    a, b = one.configuration.get(path), other.configuration.get(path)
    return type(a) is type(b) and bool(a == b)


def _values(results: Sequence[ResultFigures], path: str) -> tuple[Any, ...]:
    """Return the distinct values of a parameter; empty if no result has the parameter, as in another version."""
    if not any(path in result.configuration for result in results):
        return ()
    texts = dict.fromkeys(json.dumps(result.configuration.get(path)) for result in results)
    return tuple(map(json.loads, texts))


def values_text(values: Sequence[Any]) -> str:
    """Return the values of a parameter on one side as YAML text; ``absent`` for a side without it."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return ", ".join(texts) or "absent"


def _few(values: Sequence[Any]) -> str:
    return values_text(values) if len(values) <= 3 else f"{values_text(values[:2])}, …, {values_text(values[-1:])}"


_COUNTED = {
    "system.sips.": ("sips", "SIP", "sip_to_sip"),
    "sip.cube_mesh.": ("cubes", "cube", "cube_to_cube"),
    "cube.pe_layout.pe_per_corner": ("pes", "PE", ""),
    "cube.hbm.slices": ("slices", "HBM slice", ""),
}
"""Components that are counted, by prefix of their parameters: name of the count, name of the component, and links"""
_PART = re.compile(r"(?:system|sip|cube|pe)\.(?:links|components|extra)\.(\w+)\..+")
_SECTIONS = {
    "cube.hbm": "hbm_ctrl",
    "cube.sram": "sram",
    "pe.gemm": "pe_gemm",
    "pe.math": "pe_math",
    "pe.dma": "pe_dma",
}
_UNSEEN = ("pe_tcm", "pe_mmu")
"""Parts whose use the results do not record"""
_TYPES = tuple(map(str, dtypes.ALL))
_WORDS = {
    "cube_to_cube": "links between cubes",
    "sip_to_sip": "links between SIPs",
    "sip_port": "links between SIPs",
    "router_to_sram": "SRAM",
    "sram": "SRAM",
    "pe_gemm": "the matrix unit",
    "pe_math": "MATH",
    "pe_ipcq": "queues",
}


@value
class _Use:
    """The parts of the machines that results used.

    ``parts``: used parts. ``cubes``: cubes that contain all activity, for each result. ``counts``: numbers of used
    components, if both results of each pair agree.
    """

    parts: frozenset[str]
    cubes: frozenset[str]
    counts: Mapping[str, str]


def _sum_use(pairs: Sequence[ResultPair]) -> _Use | None:
    """Return the combined use of the results; None if a result does not record it."""
    results = [result for pair in pairs for result in pair]
    if not all(result.says("used.parts") for result in results):
        return None
    counts = {}
    for name, _, _ in _COUNTED.values():
        numbers = {(a.text(f"used.{name}"), b.text(f"used.{name}")) for a, b in pairs}
        if all(one == other for one, other in numbers):
            counts[name] = " or ".join(sorted(one for one, _ in numbers))
    parts = {name for text in {result.text("used.parts") for result in results} for name in text.split(", ")}
    cubes = {result.text("used.within").partition(".cube")[2] for result in results}
    return _Use(frozenset(parts), frozenset(cubes), counts)


def _name_unused(path: str, use: _Use, results: Sequence[ResultFigures]) -> str:
    """Return the component of a machine parameter if no result uses that component."""
    count, name, part = next((entry for begin, entry in _COUNTED.items() if path.startswith(begin)), ("", "", ""))
    part = part if count else _part_of(path, results)
    if part in use.parts or part in _UNSEEN or (count not in use.counts if count else not part):
        return ""
    if part == "cube_to_cube":
        (cube, *others) = use.cubes
        return f"the mesh beyond cube {cube}" if cube and not others else _WORDS[part]
    if part in _TYPES:
        types = [kind for kind in _TYPES if kind in use.parts]
        return f"products of other types than {', '.join(types)}" if types else _WORDS["pe_gemm"]
    return f"{name}s beyond {use.counts[count]}" if count else _WORDS.get(part, part)


def _part_of(path: str, results: Sequence[ResultFigures]) -> str:
    """Return the name in ``used.parts`` of the part, link class or data type that a parameter configures."""
    match, (section, _, key) = _PART.fullmatch(path), path.rpartition(".")
    if match is not None:
        kind = f"{path[: match.end(1)]}.kind"
        return next((str(result.configuration[kind]) for result in results if result.configuration.get(kind)), match[1])
    return key if section == "pe.gemm.macs_per_ns" else _SECTIONS.get(section, "")


def say_machines(a: Iterable[ResultFigures], b: Iterable[ResultFigures]) -> str:
    """Return the differences between the machines of A and B, as ``PEs 8 → 4; …``; empty if no headline differs."""
    ours, theirs = [result.configuration for result in a], [result.configuration for result in b]
    return "; ".join(_headlines(ours, theirs))


def _headlines(ours: Iterable[Configuration], theirs: Iterable[Configuration]) -> Iterator[str]:
    for label, describe in _HEADLINES.items():
        sides = [{_try_headline(describe, configuration) for configuration in side} for side in (ours, theirs)]
        if sides[0] != sides[1] and all(len(side) == 1 and "" not in side for side in sides):
            (one,), (other,) = sides
            yield f"{label} {one} → {other}"


def _try_headline(describe: _Headline, configuration: Configuration) -> str:
    """Return a headline; empty if the result lacks its keys or values, such as a result of another version."""
    try:
        return describe % configuration if isinstance(describe, str) else describe(configuration)
    except (KeyError, TypeError, ValueError):
        return ""


def _sips(c: Configuration) -> str:
    count = c["system.sips.count"]
    return f"{count} ({c['system.sips.topology']})" if count > 1 else f"{count}"


def _slice(c: Configuration) -> str:
    name, channels = c["cube.hbm.timing"], c["cube.hbm.num_pcs"]
    preset = PRESETS.get(name)
    peak = "" if preset is None else f" ({channels * preset.timing.pc_gbs:.4g} GB/s peak)"
    return f"{channels} channels of {name}{peak}"


def _between(path: str, *counts: str) -> Callable[[Configuration], str]:
    """Return the headline of links that exist only if one of ``counts`` is above 1."""
    return lambda c: f"{c[path]:g} GB/s" if any(c[count] > 1 for count in counts) else ""


_HEADLINES: Mapping[str, _Headline] = {
    "SIPs": _sips,
    "cubes a SIP": "%(sip.cube_mesh.w)s × %(sip.cube_mesh.h)s",
    "PEs a cube": lambda c: f"{c['cube.pe_layout.pe_per_corner'] * len(c['cube.pe_layout.corners'])}",
    "MACs of f16 a ns and PE": "%(pe.gemm.macs_per_ns.f16)g",
    "a slice of HBM": _slice,
    "bytes of a slice": lambda c: format_size(c["cube.hbm.bytes_per_slice"]),
    "TCM": lambda c: format_size(c["pe.tcm.bytes"]),
    "a link of the NoC": "%(cube.noc.link_bw_gbs)g GB/s",
    "a router": "%(cube.components.noc_router.attrs.overhead_ns)g ns",
    "from cube to cube": _between("sip.links.cube_to_cube.bw_gbs", "sip.cube_mesh.w", "sip.cube_mesh.h"),
    "from SIP to SIP": _between("system.links.sip_to_sip.bw_gbs", "system.sips.count"),
    "clocks of PEs, NoC, IO": "%(clocks.pe)g, %(clocks.noc)g, %(clocks.io)g",
    "the host's link": "%(system.links.host_to_switch.bw_gbs)g GB/s",
}
