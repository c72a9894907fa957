"""What must hold for extra parts: their names, their neighbours, the addresses of memories, how many there may be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kernbench.common.complaints import one_of
from kernbench.common.config import Complaint, Path
from kernbench.common.errors import close_to
from kernbench.common.units import format_size
from kernbench.di.part import PE_KINDS
from kernbench.topology.cube_plan import LINKED_PE_KINDS, XBAR, names_in_cube
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.extra import WINDOW_BYTES, AddressWindow, ExtraPart, unreachable
from kernbench.topology.pe_spec import PeSpec

CUBE_WINDOWS_BYTES = 1 << 29
"""Of the SRAM and the extra memories of a cube together"""
PE_WINDOWS_BYTES = 64 << 20
MOST_IN_A_PLACE = 64
"""More of them would not be seen in any picture, and a misread file is found out before it is compiled."""


def cube_extras_fit(cube: CubeSpec) -> Iterator[Complaint]:
    """The extra parts of a cube: their links end at the parts of the cube outside its PEs."""
    if cube.extra:
        names = names_in_cube(cube)
        pes = [f"pe{pe}" for pe in range(cube.pe_layout.pes)]
        yield from _fits(("cube", "extra"), cube.extra, neighbours=names, taken=(*names, *pes), of="the cube")
    yield from _has_addresses("cube", cube.extra_memories, CUBE_WINDOWS_BYTES, "SRAM and the extra memories of a cube")


def pe_extras_fit(pe: PeSpec) -> Iterator[Complaint]:
    """The extra parts of a PE: their links end at those of its parts that have links, or at the xbar of its corner."""
    yield from _fits(("pe", "extra"), pe.extra, neighbours=(*LINKED_PE_KINDS, XBAR), taken=(*PE_KINDS, XBAR), of="a PE")
    yield from _has_addresses("pe", pe.extra_memories, PE_WINDOWS_BYTES, "extra memories of a PE")


def _fits(
    at: Path, extra: Mapping[str, ExtraPart], *, neighbours: Collection[str], taken: Collection[str], of: str
) -> Iterator[Complaint]:
    if len(extra) > MOST_IN_A_PLACE:
        yield Complaint(at, f"found {len(extra)} extra parts, must be at most {MOST_IN_A_PLACE}")
    for name, part in extra.items():
        if name in taken:
            yield Complaint((*at, name), f"{of} has a part {name!r} already", at_key=True)
        known = [each for each in (*neighbours, *extra) if each != name]
        for index, link in enumerate(part.links):
            listed = [each.to for each in part.links[:index]]
            for message in _problems(name, link.to, listed, known, extra):
                yield Complaint((*at, name, "links", index, "to"), message)
    if all(link.to in neighbours or link.to in extra for part in extra.values() for link in part.links):
        for name in unreachable(extra):
            yield Complaint((*at, name, "links"), f"no way leads from it to the parts of {of}: only to extra parts")


def _problems(
    name: str, end: str, listed: Collection[str], known: Collection[str], extra: Mapping[str, ExtraPart]
) -> Iterator[str]:
    """What is wrong with a link of part ``name`` to ``end``, after those to the neighbours ``listed``."""
    before = list(extra)[: list(extra).index(name)]
    if end not in known:
        yield f"unknown neighbour {end!r}; {close_to(end, known)}there are: {one_of(known)}"
    elif end in listed:
        yield f"{end} is listed twice; each neighbour once"
    elif end in before and any(link.to == name for link in extra[end].links):
        yield f"{end} lists this link already; it goes both ways"


def _has_addresses(section: str, memories: Collection[AddressWindow], limit: int, what: str) -> Iterator[Complaint]:
    beyond = next((window for window in memories if window.end > limit), None)
    if beyond is not None:
        size = f"{format_size(beyond.nbytes)} from {format_size(beyond.offset)} on"
        rule = f"the {what} have {format_size(limit)} of addresses, and each begins at a multiple of"
        yield Complaint((section, "extra", beyond.name, "bytes"), f"{size}, but {rule} {format_size(WINDOW_BYTES)}")
