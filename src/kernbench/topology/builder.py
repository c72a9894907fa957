"""The passes from ``topology.yaml`` to a compiled machine, by name: load, validate, clock, elaborate.

The fifth, ``wire``, belongs to the simulation engine and is the only one that knows it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import resources
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from kernbench.common.config import Complaint, Document, apply_overrides, check, load_document, path_of, report
from kernbench.common.errors import ConfigError, Problem, UnknownNameError
from kernbench.common.field_types import model_at
from kernbench.common.units import format_size
from kernbench.common.yaml_document import path_text
from kernbench.di.registry import REGISTRY, Registry
from kernbench.topology.clocks import apply_clocks, check_clocks
from kernbench.topology.elaborate import elaborate
from kernbench.topology.graph import Graph
from kernbench.topology.hbm_places import Places
from kernbench.topology.hbm_spec import HBM3, HbmSpec
from kernbench.topology.rules import check_rules
from kernbench.topology.spec import TopologySpec


def validate_topology(document: Document, registry: Registry) -> TopologySpec:
    """Return the spec of a machine as its file has it. Raises ConfigError with everything wrong, in file order."""
    checked = check(document, TopologySpec, context=registry)
    spec = checked.value
    found = _check_sound_sections(document, registry) if spec is None else _check_spec(spec)
    report(document, [*checked.complaints, *found])
    assert spec is not None, "a document without complaints has a spec"
    return spec


def _check_spec(spec: TopologySpec) -> list[Complaint]:
    """Return the complaints about a machine at its clocks: it is that one which is simulated."""
    found = list(check_clocks(spec, spec.clocks))
    return found or list(check_rules(partial(_section_of, apply_clocks(spec, spec.clocks))))


def _section_of(spec: TopologySpec, path: str) -> Any:
    section: Any = spec
    for name in path_of(path):
        section = dict(section)[name]
    return section


def _check_sound_sections(document: Document, registry: Registry) -> list[Complaint]:
    """Return the complaints about those sections of an unsound document that are sound by themselves."""

    @cache
    def sound_section(path: str) -> Any:
        model = model_at(TopologySpec, path_of(path))
        assert model is not None, f"a rule names {path}, which is no section"
        return check(document, model, path_of(path), registry).value

    return list(check_rules(sound_section))


DEFAULT_NAME = "default"
LOCAL_FILE = "topology.yaml"
_DEFAULTS = resources.files("kernbench") / "defaults"
_SUFFIX = ".yaml"
_BARE_NAME = re.compile(r"[\w-]+")


@cache
def packaged_machines() -> Mapping[str, str]:
    """Return the files of the machines that come with kernbench, by name: ``default``, then the others by alphabet."""
    folder = _DEFAULTS / "machines"
    others = sorted(file.name for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    files = {name.removesuffix(_SUFFIX): str(folder / name) for name in others}
    return MappingProxyType({DEFAULT_NAME: str(_DEFAULTS / LOCAL_FILE), **files})


def list_machines() -> Iterator[tuple[str, str]]:
    """Yield name and description of each packaged machine: the first sentence of its file."""
    for name, file in packaged_machines().items():
        line = Path(file).read_text(encoding="utf-8").partition("\n")[0]
        yield name, line.removeprefix("# ").partition(". ")[0].removesuffix(".")


def is_machine_name(text: str, beside: Path = Path()) -> bool:
    """Return True for a text that can only be meant as the name of a packaged machine, right or wrong.

    A word without a suffix is one, unless there is such a file in the folder ``beside``.
    """
    return text in packaged_machines() or (_BARE_NAME.fullmatch(text) is not None and not (beside / text).exists())


def machine_file(name: str, beside: Path = Path()) -> str:
    """Return the file of a packaged machine. Raises UnknownNameError with those there are, and the nearest."""
    files = packaged_machines()
    if name not in files:
        raise UnknownNameError("machine", name, tuple(files), f"no such file either (looked from {beside.absolute()})")
    return files[name]


def name_of(source: str) -> str:
    """Return the name of the packaged machine whose file ``source`` is; else ``source``."""
    return next((name for name, file in packaged_machines().items() if file == source), source)


@dataclass(frozen=True)
class Topology:
    """A compiled machine and its source; ``given``: the configuration of its file, where clocks make another of it."""

    topology_obj: Graph
    source: str
    given: TopologySpec | None = None

    @property
    def spec(self) -> TopologySpec:
        """The typed configuration of the machine at its clocks."""
        return self.topology_obj.spec

    @property
    def name(self) -> str:
        """The name of a packaged machine; else the path of its file."""
        return name_of(self.source)

    @property
    def configured(self) -> TopologySpec:
        """The typed configuration as its file has it, with its clocks."""
        return self.given or self.spec

    @property
    def configuration(self) -> dict[str, Any]:
        """``configured`` as plain data with all of its clocks, for those who compare machines."""
        found: dict[str, Any] = self.configured.model_dump(mode="json")
        return found | {"clocks": dict(self.configured.clocks)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the resolved configuration: the same for files that mean the same machine."""
        canonical = json.dumps(self.spec.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def resolved_yaml(self) -> str:
        """Return the full configuration as YAML that compiles to the same machine."""
        content = self.configured.model_dump(mode="json")
        return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def resolve_topology(
    path_or_name: str | os.PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    registry: Registry | None = None,
) -> Topology:
    """Compile a machine: a packaged one by its name, one of a file, or None: ./topology.yaml, else ``default``.

    ``overrides`` are ``path=value`` texts, as ``--set`` takes them. Raises ConfigError with every problem, and
    UnknownNameError for a name that no packaged machine has.
    """
    document = apply_overrides(load_document(topology_file(path_or_name)), overrides)
    return compile_topology(document, registry)


def topology_file(path_or_name: str | os.PathLike[str] | None = None) -> str:
    """Return the file that a ``--topology`` argument means. Raises UnknownNameError for a name without a machine."""
    if path_or_name is None:
        path_or_name = LOCAL_FILE if Path(LOCAL_FILE).exists() else DEFAULT_NAME
    text = os.fspath(path_or_name)
    return machine_file(text) if is_machine_name(text) else text


def read_spec(
    path_or_name: str | os.PathLike[str] | None = None, overrides: Iterable[str] = (), registry: Registry | None = None
) -> TopologySpec:
    """Return the configuration of a machine, as ``resolve_topology`` would find it, without compiling it."""
    document = apply_overrides(load_document(topology_file(path_or_name)), overrides)
    return validate_topology(document, registry or REGISTRY)


def compile_topology(document: Document, registry: Registry | None = None) -> Topology:
    """Compile a parsed file, and warn of what is allowed but slow.

    Raises ConfigError with every problem, in file order.
    """
    given = validate_topology(document, registry or REGISTRY)
    for complaint in advise(given):
        warnings.warn(str(document.problem(complaint)), stacklevel=3)
    return _compile(given, document.source)


def compile_variant(machine: Topology, given: TopologySpec) -> Topology:
    """Compile a machine that differs from another by its configuration; ``source`` stays.

    Raises ConfigError with what that configuration breaks.
    """
    complaints = _check_spec(given)
    if complaints:
        found = ((path_text(each.path), each.message) for each in complaints)
        raise ConfigError(
            tuple(Problem(source=machine.source, line=0, column=0, path=path, message=text) for path, text in found)
        )
    return _compile(given, machine.source)


def _compile(given: TopologySpec, source: str) -> Topology:
    return Topology(elaborate(apply_clocks(given, given.clocks)), source, given if given.clocks.changed else None)


# What the loader warns of: machines that are allowed, and slower than their owners may think.

STRIDES = tuple(512 << i for i in range(8))
"""512 B to 64 KiB: the rows of most matrices"""
ROWS = 32
ROW_BYTES = 128
"""Rows of a tile, and what it has of each: 64 values of two bytes"""
MOST_ROWS = 1024


def advise(spec: TopologySpec) -> Iterator[Complaint]:
    """Yield what to warn of, by path."""
    yield from _rows_spread_over_channels(spec.cube.hbm)
    yield from _queues_cover_opening_rows(spec.cube.hbm)


def channels_of_rows(hbm: HbmSpec, stride: int) -> tuple[int, int]:
    """Return how many pseudo-channels rows use that lie ``stride`` bytes apart, and how many they could."""
    unit = hbm.interleave_bytes
    # Without banks what lies on one channel is one burst of one row.
    banks = hbm.banks or HBM3.model_copy(update={"row_bytes": unit, "burst_bytes": unit})
    rows = max(ROWS, min(MOST_ROWS, hbm.round_bytes // stride))
    bytes_ = np.arange(rows)[:, None] * stride + np.arange(0, ROW_BYTES, min(ROW_BYTES, banks.burst_bytes))
    places = Places(banks, hbm.num_pcs, hbm.fields(banks)).of((bytes_ // banks.burst_bytes).ravel())
    return len({*places["pc"].tolist()}), min(hbm.num_pcs, rows)


def _rows_spread_over_channels(hbm: HbmSpec) -> Iterator[Complaint]:
    """Warn of a mapping that puts the rows of a tile on half of the pseudo-channels, or fewer, for some strides."""
    found = {stride: channels_of_rows(hbm, stride) for stride in STRIDES}
    piled = {stride: used for stride, (used, most) in found.items() if 2 * used <= most}
    if not piled:
        return
    worst = min(piled, key=piled.__getitem__)
    where = f"rows {format_size(worst)} apart ({ROW_BYTES} B of each) lie on {piled[worst]} of {hbm.num_pcs}"
    slow = f"{where} pseudo-channels, so tiles of such matrices stream at a part of the bandwidth"
    if not hbm.interleaves:
        key, better = "mapping", "mapping: interleave and hash spread them"
    elif hbm.folds_channels:
        key, better = "burst_bytes", "burst_bytes: 256 spreads them"
    else:
        key, better = "channel_hash", "channel_hash: xor spreads them"
    if hbm.num_pcs.bit_count() != 1:
        better = "with a power of two of them channel_hash: xor spreads them"
    yield Complaint(path_of(f"cube.hbm.{key}"), f"{slow}; {better}")


def _queues_cover_opening_rows(hbm: HbmSpec) -> Iterator[Complaint]:
    """Warn of queues that are full before a row is open (Little's law): a channel's buses idle meanwhile."""
    banks = hbm.banks
    if banks is None:
        return
    channel_gbs = min(banks.pcs_per_channel, hbm.num_pcs) * banks.pc_gbs * (1 - banks.refresh_share)
    opening_ns = banks.rp_ns + banks.rcd_ns
    enough = ceil(channel_gbs * opening_ns / banks.burst_bytes)
    if hbm.queue >= enough:
        return
    held_gbs = hbm.queue * banks.burst_bytes / opening_ns
    found = f"a channel queues {hbm.queue} bursts of {banks.burst_bytes} B"
    wait = f"if all wait for rows (tRP + tRCD, {opening_ns:g} ns) it moves {held_gbs:.1f} GB/s of {channel_gbs:.1f}"
    yield Complaint(path_of("cube.hbm.queue_entries"), f"{found}; {wait}; {enough} are enough")
