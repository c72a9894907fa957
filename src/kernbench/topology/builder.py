"""The passes from ``topology.yaml`` to a compiled machine: load, validate, clock, elaborate.

The fifth pass, ``wire``, belongs to the simulation engine and is the only one that touches the simulation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial, reduce
from importlib import resources
from math import ceil
from operator import getitem
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from kernbench.common.config import Complaint, Document, apply_overrides, check, load_document, path_of, report
from kernbench.common.errors import ConfigError, Problem, UnknownNameError
from kernbench.common.field_types import model_at
from kernbench.common.units import format_size, parse_size
from kernbench.common.yaml_document import path_text
from kernbench.di.registry import REGISTRY, Registry
from kernbench.topology.clocks import apply_clocks, check_clocks
from kernbench.topology.elaborate import elaborate
from kernbench.topology.graph import Graph
from kernbench.topology.hbm_places import BurstPlaces
from kernbench.topology.hbm_spec import HBM3, HbmSpec
from kernbench.topology.rules import check_rules
from kernbench.topology.spec import IoCpuAttrs, TopologySpec


def validate_topology(document: Document, registry: Registry) -> TopologySpec:
    """Return the spec of a machine, before clocks are applied. Raises ConfigError with all problems, in file order."""
    checked = check(document, TopologySpec, context=registry)
    spec = checked.value
    rule_complaints = _check_sound_sections(document, registry) if spec is None else _check_spec(spec)
    report(document, [*checked.complaints, *rule_complaints])
    assert spec is not None, "a document without complaints has a spec"
    return spec


def _check_spec(spec: TopologySpec) -> list[Complaint]:
    """Return the complaints about a machine with its clocks applied, which is the simulated machine."""
    complaints = list(check_clocks(spec, spec.clocks))
    return complaints or list(check_rules(partial(_section_of, apply_clocks(spec, spec.clocks))))


def _section_of(spec: TopologySpec, path: str) -> Any:
    section: Any = spec
    for name in path_of(path):
        section = dict(section)[name]
    return section


def _check_sound_sections(document: Document, registry: Registry) -> list[Complaint]:
    """Return, for an invalid document, the complaints of those rules whose sections are valid by themselves."""

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
LATER_KEYS: Mapping[tuple[str, ...], object] = MappingProxyType(
    {("sip", "components", "io_cpu", "attrs", "queue"): IoCpuAttrs.model_fields["queue"].default}
)
"""Keys that machines of version 0.2.0 did not have, by path, with their defaults"""


@cache
def packaged_machines() -> Mapping[str, str]:
    """Return the files of the packaged machines by name: ``default``, then the others in alphabetical order."""
    folder = _DEFAULTS / "machines"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    files = {name.removesuffix(_SUFFIX): str(folder / name) for name in names}
    return MappingProxyType({DEFAULT_NAME: str(_DEFAULTS / LOCAL_FILE), **files})


def list_machines() -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each packaged machine; the description is the file's first sentence."""
    for name, file in packaged_machines().items():
        line = Path(file).read_text(encoding="utf-8").partition("\n")[0]
        yield name, line.removeprefix("# ").partition(". ")[0].removesuffix(".")


def is_machine_name(text: str, beside: Path = Path()) -> bool:
    """Return True if a text is meant as the name of a packaged machine, even if it is misspelt.

    A word without a suffix is a name, unless there is a file of that name in the folder ``beside``.
    """
    return text in packaged_machines() or (_BARE_NAME.fullmatch(text) is not None and not (beside / text).exists())


def machine_file(name: str, beside: Path = Path()) -> str:
    """Return the file of a packaged machine. Raises UnknownNameError with all names and the nearest one."""
    files = packaged_machines()
    if name not in files:
        raise UnknownNameError("machine", name, tuple(files), f"no such file either (looked from {beside.absolute()})")
    return files[name]


def name_of(source: str) -> str:
    """Return the name of the packaged machine with the file ``source``, or ``source`` if there is none."""
    return next((name for name, file in packaged_machines().items() if file == source), source)


@dataclass(frozen=True)
class Topology:
    """A compiled machine and its source.

    ``unclocked``: the configuration of the file if clocks change it. ``file_packet_bytes``: the file's
    ``transport.packet_bytes`` if ``--set`` changes it.
    """

    topology_obj: Graph
    source: str
    unclocked: TopologySpec | None = None
    file_packet_bytes: int | None = None

    @property
    def spec(self) -> TopologySpec:
        """The typed configuration of the machine with its clocks applied."""
        return self.topology_obj.spec

    @property
    def name(self) -> str:
        """The name of a packaged machine, or the path of the file."""
        return name_of(self.source)

    @property
    def configured(self) -> TopologySpec:
        """The typed configuration of the file, with clocks as factors."""
        return self.unclocked or self.spec

    @property
    def configuration(self) -> dict[str, Any]:
        """``configured`` as plain data with all clocks, for comparing machines."""
        content: dict[str, Any] = self.configured.model_dump(mode="json")
        return content | {"clocks": dict(self.configured.clocks)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the resolved configuration without energies: equal for files that describe the same machine.

        ``LATER_KEYS`` are left out at their defaults, so that results of earlier versions stay comparable.
        """
        content = self.spec.model_dump(mode="json", exclude={"energy"})
        for (*path, key), default in LATER_KEYS.items():
            section = reduce(getitem, path, content)
            if section.get(key) == default:
                del section[key]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
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
    """Compile a packaged machine by its name, or a file; None means ./topology.yaml if it exists, else ``default``.

    ``overrides`` are ``path=value`` texts, as for ``--set``. Raises ConfigError with every problem, and
    UnknownNameError for an unknown name.
    """
    document = apply_overrides(load_document(topology_file(path_or_name)), overrides)
    return compile_topology(document, registry)


def topology_file(path_or_name: str | os.PathLike[str] | None = None) -> str:
    """Return the file of a ``--topology`` argument. Raises UnknownNameError for an unknown name."""
    if path_or_name is None:
        path_or_name = LOCAL_FILE if Path(LOCAL_FILE).exists() else DEFAULT_NAME
    text = os.fspath(path_or_name)
    return machine_file(text) if is_machine_name(text) else text


def read_spec(
    path_or_name: str | os.PathLike[str] | None = None, overrides: Iterable[str] = (), registry: Registry | None = None
) -> TopologySpec:
    """Return the configuration that ``resolve_topology`` would compile, without compiling it."""
    document = apply_overrides(load_document(topology_file(path_or_name)), overrides)
    return validate_topology(document, registry or REGISTRY)


def compile_topology(document: Document, registry: Registry | None = None) -> Topology:
    """Compile a parsed file, and warn about settings that are allowed but slow.

    Raises ConfigError with every problem, in file order.
    """
    spec = validate_topology(document, registry or REGISTRY)
    for complaint in advise(spec):
        warnings.warn(str(document.problem(complaint)), stacklevel=3)
    return replace(_compile(spec, document.source), file_packet_bytes=_replaced_packet_bytes(document, spec))


def compile_variant(machine: Topology, spec: TopologySpec) -> Topology:
    """Compile a machine with another configuration and the ``source`` of ``machine``.

    Raises ConfigError with the rules that the configuration breaks.
    """
    complaints = _check_spec(spec)
    if complaints:
        texts = ((path_text(complaint.path), complaint.message) for complaint in complaints)
        raise ConfigError(
            tuple(Problem(source=machine.source, line=0, column=0, path=path, message=text) for path, text in texts)
        )
    return _compile(spec, machine.source)


def _compile(spec: TopologySpec, source: str) -> Topology:
    return Topology(elaborate(apply_clocks(spec, spec.clocks)), source, spec if spec.clocks.changed else None)


def _replaced_packet_bytes(document: Document, spec: TopologySpec) -> int | None:
    """Return the packets of the file if ``--set`` changes them, else None."""
    size = document.get_unchanged(("transport", "packet_bytes"))
    try:
        file_bytes = parse_size(size)
    except (TypeError, ValueError):
        return None
    return None if file_bytes == spec.transport.packet_bytes else file_bytes


# Warnings of the loader: about machines that are allowed, and slower than expected.

STRIDES = tuple(512 << i for i in range(8))
"""Row sizes of most matrices: 512 B to 64 KiB"""
ROWS = 32
ROW_BYTES = 128
"""Rows of a tile, and bytes of each row in it: 64 values of two bytes"""
MOST_ROWS = 1024


def advise(spec: TopologySpec) -> Iterator[Complaint]:
    """Yield the warnings about a machine, with their paths."""
    yield from _rows_spread_over_channels(spec.cube.hbm)
    yield from _queues_cover_opening_rows(spec.cube.hbm)


def channels_of_rows(hbm: HbmSpec, stride: int) -> tuple[int, int]:
    """Return the number of pseudo-channels that rows ``stride`` bytes apart use, and the number they could use."""
    unit = hbm.interleave_bytes
    # Without banks, the consecutive bytes on a pseudo-channel count as one burst of one row.
    banks = hbm.banks or HBM3.model_copy(update={"row_bytes": unit, "burst_bytes": unit})
    rows = max(ROWS, min(MOST_ROWS, hbm.round_bytes // stride))
    bytes_ = np.arange(rows)[:, None] * stride + np.arange(0, ROW_BYTES, min(ROW_BYTES, banks.burst_bytes))
    places = BurstPlaces(banks, hbm.num_pcs, hbm.fields(banks)).of((bytes_ // banks.burst_bytes).ravel())
    return len({*places["pc"].tolist()}), min(hbm.num_pcs, rows)


def _rows_spread_over_channels(hbm: HbmSpec) -> Iterator[Complaint]:
    """Warn about a mapping that, for some strides, puts the rows of a tile on at most half of the pseudo-channels."""
    channels = {stride: channels_of_rows(hbm, stride) for stride in STRIDES}
    piled = {stride: used for stride, (used, most) in channels.items() if 2 * used <= most}
    if not piled:
        return
    worst = min(piled, key=piled.__getitem__)
    where = f"rows {format_size(worst)} apart ({ROW_BYTES} B of each) use {piled[worst]} of {hbm.num_pcs}"
    slow = f"{where} pseudo-channels, so tiles of such matrices stream at a fraction of the bandwidth"
    if not hbm.interleaves:
        key, better = "mapping", "mapping: interleave and hash spread them"
    elif hbm.folds_channels:
        key, better = "burst_bytes", "burst_bytes: 256 spreads them"
    else:
        key, better = "channel_hash", "channel_hash: xor spreads them"
    if hbm.num_pcs.bit_count() != 1:
        better = "with a power of two as the number of channels, channel_hash: xor spreads them"
    yield Complaint(path_of(f"cube.hbm.{key}"), f"{slow}; {better}")


def _queues_cover_opening_rows(hbm: HbmSpec) -> Iterator[Complaint]:
    """Warn about queues that fill up before a row is open (Little's law): the buses of the channel then idle."""
    banks = hbm.banks
    if banks is None:
        return
    channel_gbs = min(banks.pcs_per_channel, hbm.num_pcs) * banks.pc_gbs * (1 - banks.refresh_share)
    opening_ns = banks.rp_ns + banks.rcd_ns
    enough = ceil(channel_gbs * opening_ns / banks.burst_bytes)
    if hbm.queue >= enough:
        return
    queued_gbs = hbm.queue * banks.burst_bytes / opening_ns
    queues = f"a channel queues {hbm.queue} bursts of {banks.burst_bytes} B"
    wait = f"if all wait for rows (tRP + tRCD, {opening_ns:g} ns) it moves {queued_gbs:.1f} GB/s of {channel_gbs:.1f}"
    yield Complaint(path_of("cube.hbm.queue_entries"), f"{queues}; {wait}; {enough} are enough")
