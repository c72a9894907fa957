"""The probe cases: which traffic each one is, on any machine that can have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kernbench.common.errors import UnknownNameError
from kernbench.common.values import value
from kernbench.probe.memory_case import NAME as MEMORY
from kernbench.probe.site import HbmSlice, MemoryShare, ProbeFlow, Site

FIRST_PE = (0, 0, 0)


@value
class Absent:
    """A machine does not have what a case is about, and why."""

    why: str


Placement: TypeAlias = tuple[ProbeFlow, ...] | Absent


@value
class ProbeCase:
    """Traffic with a name. ``place`` gives its flows, one for each initiator, on a machine that can have them."""

    name: str
    description: str
    place: Callable[[Site], Placement]


def find_case(name: str) -> ProbeCase:
    """The case called ``name``. UnknownNameError lists all, and ``memory``, which is no traffic of a machine."""
    found = next((case for case in CASES if case.name == name), None)
    if found is None:
        raise UnknownNameError("probe case", name, (*(case.name for case in CASES), MEMORY))
    return found


def _host_near(site: Site) -> HbmSlice:
    return site.nearest(None, site.slices(0, site.spec.sip.edge_cubes))


def _host_local(reading: bool) -> Callable[[Site], Placement]:
    return lambda site: (site.host_flow(_host_near(site), reading=reading),)


def _host_far(reading: bool) -> Callable[[Site], Placement]:
    def place(site: Site) -> Placement:
        near = _host_near(site).cube
        others = [cube for cube in range(site.spec.cubes_per_sip) if cube != near]
        if not others:
            return Absent("a SIP has one cube only, so none is far")
        return (site.host_flow(site.farthest(None, site.slices(0, others)), reading=reading),)

    return place


def _pe_local(site: Site) -> Placement:
    return (site.pe_read(FIRST_PE, site.local_slice(FIRST_PE)),)


def _pe_same_cube(site: Site) -> Placement:
    own = site.local_slice(FIRST_PE)
    others = [at for at in site.slices(0, [0]) if at != own]
    if not others:
        return Absent("a cube has one HBM slice only")
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, others)),)


def _pe_adjacent_cube(site: Site) -> Placement:
    grid = site.spec.sip.cube_mesh.grid
    beside = grid.neighbour(0, "E")
    beside = grid.neighbour(0, "S") if beside is None else beside
    if beside is None:
        return Absent("a SIP has one cube only, so none is adjacent")
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, site.slices(0, [beside]))),)


def _pe_far_cube(site: Site) -> Placement:
    others = range(1, site.spec.cubes_per_sip)
    if not others:
        return Absent("a SIP has one cube only, so none is far")
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, site.slices(0, others))),)


def _pe_cross_sip(site: Site) -> Placement:
    if site.spec.num_sips == 1:
        return Absent("the machine has one SIP only")
    beyond = site.slices(1, range(site.spec.cubes_per_sip))
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, beyond)),)


def _pe_sram(site: Site) -> Placement:
    return (site.pe_read_sram(FIRST_PE),)


def _pe_hotspot(site: Site) -> Placement:
    pes = site.spec.pes_per_cube
    if pes == 1:
        return Absent("a cube has one PE only, so nobody competes")
    at = site.local_slice(FIRST_PE)
    return tuple(site.pe_read((0, 0, pe), at, MemoryShare(pe, pes)) for pe in range(pes))


def _pe_all_local(site: Site) -> Placement:
    pes = site.spec.pes_per_cube
    if pes == 1:
        return Absent("a cube has one PE only: this is pe-local-hbm")
    own = [site.local_slice((0, 0, pe)) for pe in range(pes)]
    shares = [MemoryShare(own[:pe].count(own[pe]), own.count(own[pe])) for pe in range(pes)]
    return tuple(site.pe_read((0, 0, pe), own[pe], shares[pe]) for pe in range(pes))


CASES: tuple[ProbeCase, ...] = (
    ProbeCase("h2d-local", "host writes to a cube next to the IO chiplet", _host_local(reading=False)),
    ProbeCase("h2d-far", "host writes to the farthest cube", _host_far(reading=False)),
    ProbeCase("d2h-local", "host reads from a cube next to the IO chiplet", _host_local(reading=True)),
    ProbeCase("d2h-far", "host reads from the farthest cube", _host_far(reading=True)),
    ProbeCase("pe-local-hbm", "a PE reads its own HBM slice", _pe_local),
    ProbeCase("pe-same-cube-hbm", "a PE reads the farthest slice of its cube", _pe_same_cube),
    ProbeCase("pe-adjacent-cube-hbm", "a PE reads the farthest slice of the next cube", _pe_adjacent_cube),
    ProbeCase("pe-far-cube-hbm", "a PE reads the farthest slice of its SIP", _pe_far_cube),
    ProbeCase("pe-cross-sip-hbm", "a PE reads the farthest slice of the next SIP", _pe_cross_sip),
    ProbeCase("pe-sram", "a PE reads the SRAM of its cube", _pe_sram),
    ProbeCase("pe-hotspot", "all PEs of a cube read one slice", _pe_hotspot),
    ProbeCase("pe-all-local", "all PEs of a cube read their own slices", _pe_all_local),
)
