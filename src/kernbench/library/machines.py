"""Machines of the library: compiled from a name, a file, a mapping or another machine, and summarised as text."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from kernbench.common.complaints import show
from kernbench.common.config import Document, apply_overrides, load_document
from kernbench.common.errors import InputError
from kernbench.common.files import plain_document
from kernbench.common.late import late
from kernbench.common.units import format_size
from kernbench.result.table import Table, TableColumn, count_text, number, text_html, words
from kernbench.runtime_api.overrides import part_of
from kernbench.topology.area import PartArea, list_areas, measure_area
from kernbench.topology.builder import Topology, compile_topology, topology_file
from kernbench.topology.export import (
    ClockRow,
    LinkRow,
    PartRow,
    bank_rows,
    clock_rows,
    link_rows,
    machine_document,
    machine_rows,
    part_rows,
    peak_text,
    to_dot,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kernbench.topology.spec import TopologySpec

PICTURES = "kernbench.topology.drawing.figure"
PAGE = "kernbench.web.page"
Overrides: TypeAlias = Mapping[str, object]
"""Values by path, as for ``--set``: ``{"cube.hbm.num_pcs": 16}``"""


@dataclass(frozen=True, repr=False)
class CompiledMachine:
    """A compiled machine. A pickled machine contains only its document, and is compiled again on first use.

    ``changes``: the number of values changed since the machine was read.
    """

    document: Document
    changes: int = 0

    @cached_property
    def topology(self) -> Topology:
        """The compiled machine in the form that the engine takes."""
        return compile_topology(self.document)

    @property
    def name(self) -> str:
        """The name of a packaged machine, else the path of its file or its other source."""
        return self.topology.name

    @property
    def source(self) -> str:
        """The file that the machine was read from, or its other source."""
        return self.document.source

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved configuration. Files with the same meaning have the same digest."""
        return self.topology.digest

    @property
    def spec(self) -> TopologySpec:
        """The typed configuration, with all derived sizes."""
        return self.topology.spec

    @property
    def configuration(self) -> dict[str, Any]:
        """The complete configuration as plain data, defaults included."""
        return self.topology.configuration

    @property
    def num_sips(self) -> int:
        """The number of SIPs."""
        return self.spec.num_sips

    @property
    def num_cubes(self) -> int:
        """The number of cubes of all SIPs."""
        return self.spec.num_cubes

    @property
    def num_pes(self) -> int:
        """The number of PEs of all cubes."""
        return self.spec.num_pes

    def with_(self, overrides: Overrides) -> CompiledMachine:
        """Return the machine with changed values: ``machine.with_({"cube.hbm.num_pcs": 16})``.

        Raises ConfigError if a path does not exist or a value is not allowed.
        """
        return load_machine(self, overrides=overrides)

    def to_yaml(self) -> str:
        """Return the complete configuration as YAML. The YAML compiles to the same machine."""
        return self.topology.resolved_yaml()

    @property
    def facts(self) -> dict[str, str]:
        """A summary of the machine: counts, memories and network."""
        return dict(machine_rows(self.topology, banks=False))

    @property
    def banks(self) -> dict[str, str]:
        """A summary of the banks of an HBM slice; empty for a memory without banks."""
        return dict(bank_rows(self.topology))

    @property
    def parts(self) -> Table[PartRow]:
        """The parts of the machine by place and kind."""
        rows = tuple(part_rows(self.topology.topology_obj))
        places = list(dict.fromkeys(row.place for row in rows))
        return Table("parts", rows, _PARTS, "Parts", tuple(sorted(rows, key=lambda row: places.index(row.place))))

    @property
    def links(self) -> Table[LinkRow]:
        """The links by class. Links are directed. A hop is the entered node, the wire and the overhead of the link."""
        title = "Links  (directed; a hop is the node entered, the wire and the link's own overhead)"
        return Table("links", tuple(link_rows(self.topology.topology_obj)), _LINKS, title)

    @property
    def areas(self) -> Table[PartArea]:
        """The areas by kind of die and part, the largest first; empty if the energy of the machine is null."""
        area = measure_area(self.topology)
        rows = () if area is None else tuple(list_areas(area))
        return Table("areas", rows, _AREAS, "Areas  (of the parts of one die)")

    @property
    def clocks(self) -> Table[ClockRow]:
        """The values of the file that a clock changes."""
        return Table("clocks", tuple(clock_rows(self.topology)), _CLOCKS, "Clocks")

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench topology --json`` prints: configuration, nodes and links."""
        return plain_document(machine_document(self.topology))

    def to_dot(self) -> str:
        """Return the machine as a Graphviz graph."""
        return to_dot(self.topology)

    def to_svg(self) -> str:
        """Return the drawing of the machine as SVG."""
        drawing: str = late(PICTURES, "to_svg")(self.topology)
        return drawing

    def to_png(self) -> bytes:
        """Return the drawing of the machine as PNG."""
        drawing: bytes = late(PICTURES, "to_png")(self.topology)
        return drawing

    def page(self, path: str | os.PathLike[str]) -> None:
        """Write a page for the browser to ``path``, and the configuration of the machine to a file beside it."""
        late(PAGE, "make_page")(self.topology).write(os.fspath(path))

    def draw(self) -> Figure:
        """Draw the machine to scale as a matplotlib figure."""
        figure: Figure = late(PICTURES, "draw")(self.topology)
        return figure

    def __repr__(self) -> str:
        spec, cube = self.spec, self.spec.cube
        mesh, links, sips, system = spec.sip.cube_mesh, spec.sip.links, spec.system.sips, spec.system.links
        changed = f", {self.changes} value{'s' * (self.changes > 1)} changed" if self.changes else ""
        slices, memory = spec.num_cubes * cube.hbm.slices, spec.num_sips * spec.hbm_bytes_per_sip
        peak, sustained = (f"{slices * gbs / 1000:.3g}" for gbs in (cube.slice_peak_gbs, cube.slice_bw_gbs))
        joined = f" in {sips.topology}, {system.sip_to_sip.bw_gbs:g} GB/s a link" if spec.num_sips > 1 else ""
        between = f", {links.cube_to_cube.bw_gbs:g} GB/s between neighbours" if spec.cubes_per_sip > 1 else ""
        rows = {
            "host": f"{system.host_to_switch.bw_gbs:g} GB/s to the machine",
            "SIPs": f"{spec.num_sips}{joined}",
            "cubes": f"{spec.num_cubes}, {mesh.w} × {mesh.h} a SIP{between}",
            "PEs": f"{spec.num_pes}, {spec.pes_per_cube} a cube, {format_size(spec.pe.tcm.bytes)} of TCM each",
            "memory": f"{format_size(memory)} of {cube.hbm.timing_text}, {peak} TB/s at peak, {sustained} sustained",
            "compute": f"TFLOPS at peak (i8: TOPS): {peak_text(spec)}",
        }
        area = measure_area(self.topology)
        if area is not None:
            die = area.die_of[0, 0]
            rows["power"] = f"{area.power_text}; parts of a cube: {die.mm2:.4g} mm², {die.full:.0%} of the die"
        head = f"machine {self.name!r}{changed} ({self.digest[:12]})"
        return "\n".join([head, *(f"  {name:<8} {said}" for name, said in rows.items())])

    def _repr_html_(self) -> str:
        drawing = self.to_svg()
        return text_html(repr(self), drawing[drawing.index("<svg") :])

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, CompiledMachine) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __getstate__(self) -> dict[str, object]:
        return {"document": self.document, "changes": self.changes}


def _say_attributes(row: PartRow) -> str:
    attributes = ((name, setting) for name, setting in row.attrs.items() if setting)
    return ", ".join(
        f"{name} {f'{setting:g}' if isinstance(setting, float) else setting}" for name, setting in attributes
    )


def _say_fifo(row: LinkRow) -> str:
    return "unbounded" if row.fifo_bytes is None else " – ".join(dict.fromkeys(map(format_size, row.fifo_bytes)))


def _say_range(ends: tuple[float, float]) -> str:
    return " – ".join(dict.fromkeys(f"{end:.4g}" for end in ends))


_PARTS: tuple[TableColumn[PartRow], ...] = (
    TableColumn[PartRow]("place", "system, sip, cube or pe").words("place"),
    TableColumn[PartRow]("kind", "the kind of part").words("kind"),
    TableColumn[PartRow]("impl", "the implementation").words("implementation"),
    TableColumn[PartRow]("parts", "how many there are").number("parts", count_text),
    TableColumn(
        "attributes",
        "its attributes",
        lambda row: ", ".join(f"{name} {setting}" for name, setting in row.attrs.items()),
    ),
    words("attributes", _say_attributes),
)
_LINKS: tuple[TableColumn[LinkRow], ...] = (
    TableColumn[LinkRow]("link_class", "the places that it joins").words("class"),
    TableColumn[LinkRow]("links", "how many there are").number("links", count_text),
    TableColumn[LinkRow]("bw_gbs", "bandwidth of each").number("GB/s", "{:g}".format),
    TableColumn("least_length_mm", "the shortest", lambda row: row.length_mm[0]),
    TableColumn("most_length_mm", "the longest", lambda row: row.length_mm[1]),
    number("length mm", lambda row: _say_range(row.length_mm)),
    TableColumn("least_hop_ns", "the fastest hop", lambda row: row.hop_ns[0]),
    TableColumn("most_hop_ns", "the slowest hop", lambda row: row.hop_ns[1]),
    number("hop ns", lambda row: _say_range(row.hop_ns)),
    TableColumn("fifo_bytes", "the smallest FIFO; none: unbounded", lambda row: row.fifo_bytes and row.fifo_bytes[0]),
    number("FIFO", _say_fifo),
)
_AREAS: tuple[TableColumn[PartArea], ...] = (
    TableColumn[PartArea]("die", "the kind of die").words("die"),
    TableColumn[PartArea]("kind", "the kind of part").words("part"),
    TableColumn[PartArea]("parts", "how many there are on the die").number("parts", count_text),
    TableColumn[PartArea]("mm2", "their area in mm²").number("mm²", "{:,.2f}".format),
)
_CLOCKS: tuple[TableColumn[ClockRow], ...] = (
    TableColumn[ClockRow]("path", "the key").words("key"),
    TableColumn[ClockRow]("clock", "the clock that drives it").words("clock"),
    TableColumn[ClockRow]("given", "the number in the file").number("in the file", "{:g}".format),
    TableColumn[ClockRow]("clocked", "the number at the clock").number("at the clock", "{:.6g}".format),
)


MachineLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | CompiledMachine | Topology | None"


def load_machine(source: MachineLike = None, *, overrides: Overrides | None = None) -> CompiledMachine:
    """Compile a machine from the name of a packaged machine, a file, a mapping, or another machine.

    ``source`` None: ./topology.yaml, else ``default``. ``overrides``: values by path, as for ``--set``. Raises
    ConfigError with every problem, and UnknownNameError, with the nearest name, for an unknown machine.
    """
    texts = override_texts(overrides or {})
    settings = [text for text in texts if part_of(text) == "frontends"]
    if settings:
        raise InputError(f"{settings[0]} is no value of a machine; put it into settings of kb.run or kb.sweep")
    return compile_machine(source, texts)


def compile_machine(source: MachineLike, texts: Sequence[str]) -> CompiledMachine:
    """Compile a machine with changes. ``texts``: ``path=value``, as for ``--set``."""
    document, changed = _document_of(source)
    machine = CompiledMachine(apply_overrides(document, texts) if texts else document, changed + len(texts))
    _ = machine.topology  # compile now, to report errors of the machine
    return machine


def _document_of(source: MachineLike) -> tuple[Document, int]:
    if isinstance(source, CompiledMachine):
        return source.document, source.changes
    if isinstance(source, Topology):
        return Document(source.source, source.configured.model_dump(mode="json"), {}), 0
    if isinstance(source, Mapping):
        return Document("a mapping", json.loads(json.dumps(dict(source), default=_refuse)), {}), 0
    if source is None or isinstance(source, str | os.PathLike):
        return load_document(topology_file(source)), 0
    raise InputError(f"found {show(source)}, must be a machine: a name, a file, a mapping, or a result of load_machine")


def _refuse(content: object) -> object:
    raise InputError(f"found {show(content)} in a machine; its values are numbers, texts, lists and mappings")


def override_texts(overrides: Overrides) -> list[str]:
    """Return overrides as texts for ``--set``. Raises InputError for anything but a mapping of paths."""
    if not isinstance(overrides, Mapping):
        raise InputError(f"found {show(overrides)}, must be a mapping of paths such as cube.hbm.num_pcs to values")
    return [f"{path}={json.dumps(content, default=_refuse)}" for path, content in overrides.items()]
