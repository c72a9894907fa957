"""The rules between the values of a topology.

A rule names the sections that it checks and yields complaints about entries, by path. A rule runs if its sections are
valid by themselves. An error in one part of the file therefore does not hide a contradiction in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from kernbench.common.complaints import one_of
from kernbench.common.config import Complaint, ConfigModel, Path, path_of
from kernbench.common.errors import close_to
from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.di.part import PE_KINDS
from kernbench.topology.cube_plan import LINKED_PE_KINDS, XBAR, names_in_cube
from kernbench.topology.cube_spec import CubeLinks, CubeSpec, NocSpec, PeLayoutSpec, SramSpec
from kernbench.topology.energy_spec import macs_have_energies
from kernbench.topology.fields import (
    WINDOW_BYTES,
    AddressWindow,
    BankedSpec,
    ComponentSpec,
    ExtraPart,
    LinkSpec,
    unreachable,
)
from kernbench.topology.geometry import PE_FLOORPLAN
from kernbench.topology.grid import Grid
from kernbench.topology.hbm_spec import AddressMapping, HbmCtrlAttrs, HbmSpec, HbmTiming
from kernbench.topology.pe_spec import GemmSpec, PeComponents, PeSpec, TcmSpec
from kernbench.topology.spec import (
    PACKETS_PER_FIFO,
    TWO_DIMENSIONAL,
    AddressSpec,
    CubeMeshSpec,
    IoChipletSpec,
    SipsSpec,
    TransportSpec,
)

MAX_PES_PER_CUBE = 16
MAX_HBM_PER_CUBE = 128 << 30
MAX_SRAM = 1 << 29
MAX_TCM = 256 << 20
MOST_PARTS_AND_LINKS = 4_000_000
BYTES_PER_PART_OR_LINK = 512
"""Memory of a compiled machine and of the engine's route caches; each part or link also costs a few µs."""
LONGEST_NS = 1e12
"""The same limit as for every duration in the file: it keeps simulated time far below the clock's limit."""
MOST_BANKS = 1 << 14
MAPPED_ONCE = ("pc", "stack", "group", "bank")
CUBE_WINDOWS_BYTES = 1 << 29
"""Addresses of the SRAM and the extra memories of a cube together"""
PE_WINDOWS_BYTES = 64 << 20
MOST_IN_A_PLACE = 64
"""The largest number of extra parts in a place. No picture could show more, and a misread file fails early."""
PARTS_PER_PE = sum(map(len, PE_FLOORPLAN))


SIP_BITS, CUBE_BITS = {"narrow": 4, "wide": 10}, {"narrow": 5, "wide": 8}
"""Bits of an address for the SIP and for the cube, by format"""


@value
class TopologyRule:
    """A check of the sections at these paths, which it receives in this order."""

    sections: tuple[str, ...]
    check: Callable[..., Iterable[Complaint]]


def _at(path: str, message: str) -> Complaint:
    return Complaint(path_of(path), message)


# --- SIPs, cubes and addresses --------------------------------------------------------------------------------------


def _sips_form_a_grid(sips: SipsSpec) -> Iterator[Complaint]:
    """Check that 2-D topologies have w x h = count, and that the others have no w and h."""
    present = [name for name, value in (("w", sips.w), ("h", sips.h)) if value is not None]
    if not sips.two_dimensional:
        only = f"only {one_of(TWO_DIMENSIONAL)} take w and h, not {sips.topology}"
        yield from (_at(f"system.sips.{name}", only) for name in present)
    elif len(present) == 1:
        missing = "h" if present == ["w"] else "w"
        yield _at(f"system.sips.{present[0]}", f"{present[0]} is given without {missing}; give both or neither")
    elif present and len(sips.grid) != sips.count:
        product = f"w x h = {sips.w} x {sips.h} = {len(sips.grid)}"
        yield _at("system.sips.count", f"found {sips.count}, but {product}; they must be equal")
    elif not present and math.isqrt(sips.count) ** 2 != sips.count:
        h = _largest_divisor_up_to_root(sips.count)
        advice = f"give w and h with w x h = {sips.count}, for example w: {sips.count // h}, h: {h}"
        yield _at("system.sips.count", f"{sips.count} SIPs are no square, which a {sips.topology} needs; {advice}")


def _largest_divisor_up_to_root(count: int) -> int:
    return next(d for d in range(math.isqrt(count), 0, -1) if count % d == 0)


def _sips_have_addresses(address: AddressSpec, sips: SipsSpec) -> Iterator[Complaint]:
    for limit in _find_limit(address, "sip_id", SIP_BITS, sips.count):
        yield _at("system.sips.count", f"found {sips.count}, but {limit}")


def _cubes_have_addresses(address: AddressSpec, mesh: CubeMeshSpec) -> Iterator[Complaint]:
    count = len(mesh.grid)
    for limit in _find_limit(address, "sip_seg (the cube)", CUBE_BITS, count):
        yield _at("sip.cube_mesh", f"w x h is {count} cubes, but {limit}")


def _find_limit(address: AddressSpec, field: str, bits: Mapping[str, int], count: int) -> Iterator[str]:
    """Yield a message if a field of an address has fewer than ``count`` values, with the formats that have enough."""
    width = bits[address.format]
    if count > 1 << width:
        limit = f"field {field} of the {address.format} address format has {width} bits: at most {1 << width}"
        wider = [
            f"address.format: {name} takes {1 << bit_count}"
            for name, bit_count in bits.items()
            if count <= 1 << bit_count
        ]
        yield "; ".join([limit, *wider])


def _pes_have_addresses(layout: PeLayoutSpec) -> Iterator[Complaint]:
    if layout.pes > MAX_PES_PER_CUBE:
        product = f"{layout.pe_per_corner} x {len(layout.corners)} corners = {layout.pes} PEs"
        limit = f"field pe_id of an address has 4 bits: at most {MAX_PES_PER_CUBE}"
        yield _at("cube.pe_layout.pe_per_corner", f"{product} in a cube, but {limit}")


def _hbm_has_addresses(hbm: HbmSpec) -> Iterator[Complaint]:
    if hbm.bytes > MAX_HBM_PER_CUBE:
        product = f"{hbm.slices} x {format_size(hbm.bytes_per_slice)} = {format_size(hbm.bytes)}"
        limit = f"the HBM window of a cube (field local_offset) is {format_size(MAX_HBM_PER_CUBE)}"
        yield _at("cube.hbm.bytes_per_slice", f"slices x bytes_per_slice = {product}, but {limit}")


def _sram_has_addresses(sram: SramSpec) -> Iterator[Complaint]:
    if sram.bytes > MAX_SRAM:
        limit = f"field sub_offset of an address has 29 bits: at most {format_size(MAX_SRAM)}"
        yield _at("cube.sram.bytes", f"found {format_size(sram.bytes)}, but {limit}")


def _tcm_fits(tcm: TcmSpec) -> Iterator[Complaint]:
    if tcm.bytes > MAX_TCM:
        limit = f"the address range of a TCM is {format_size(MAX_TCM)}"
        yield _at("pe.tcm.bytes", f"found {format_size(tcm.bytes)}, but {limit}")
    if tcm.scheduler_reserved_bytes >= tcm.bytes:
        reserved = f"found {format_size(tcm.scheduler_reserved_bytes)}"
        limit = f"must be less than pe.tcm.bytes, which is {format_size(tcm.bytes)}: kernels need the rest"
        yield _at("pe.tcm.scheduler_reserved_bytes", f"{reserved}, {limit}")


def _corners_are_distinct(layout: PeLayoutSpec) -> Iterator[Complaint]:
    for index, corner in enumerate(layout.corners):
        if corner in layout.corners[:index]:
            yield _at(f"cube.pe_layout.corners[{index}]", f"{corner} is listed twice; each corner once")


def _slices_fill_corners(layout: PeLayoutSpec, hbm: HbmSpec) -> Iterator[Complaint]:
    corners = len(layout.corners)
    if hbm.slices % corners:
        advice = f"must be a multiple of the {corners} corners, so that each has as many"
        yield _at("cube.hbm.slices", f"found {hbm.slices}, {advice}")


# --- HBM ------------------------------------------------------------------------------------------------------------


def channels_and_pieces(hbm: HbmSpec) -> Iterator[Complaint]:
    """Check the number of XORed pseudo-channels (a power of two), ``burst_bytes`` and ``quantum_bytes``."""
    if hbm.interleaves and hbm.folds_channels and hbm.num_pcs.bit_count() != 1:
        yield _at("cube.hbm.num_pcs", f"found {hbm.num_pcs}, must be a power of two; channel_hash: mod takes any")
    if hbm.banks is None and hbm.interleave_bytes % hbm.piece_bytes:
        yield _at("cube.hbm.burst_bytes", f"found {hbm.interleave_bytes}, must be a multiple of access_bytes")
    name, least = ("access_bytes", hbm.piece_bytes) if hbm.banks is None else ("a burst", hbm.banks.burst_bytes)
    if hbm.quantum_bytes < least:
        yield _at("cube.hbm.quantum_bytes", f"found {hbm.quantum_bytes}, must be at least {name}, which is {least}")


def keys_are_used(hbm: HbmSpec) -> Iterator[Complaint]:
    """Complain about keys that the timing or the mapping does not use."""
    if hbm.banks is None:
        if hbm.mapping not in (None, "interleave"):
            yield _at("cube.hbm.mapping", "timing: ideal has no banks, so it can only be interleave (or null)")
        if hbm.queue_entries is not None:
            yield _at(
                "cube.hbm.queue_entries", "timing: ideal has no banks, so nothing uses this: leave it out, or null"
            )
        if hbm.refresh not in (None, "spread"):
            yield _at("cube.hbm.refresh", "timing: ideal has no banks to refresh, so it can only be spread (or null)")
        return
    if hbm.access_bytes is not None:
        yield _at("cube.hbm.access_bytes", "only timing: ideal uses this, banks serve bursts: leave it out, or null")
    if not hbm.interleaves:
        for name, entry in (("burst_bytes", hbm.burst_bytes), ("channel_hash", hbm.channel_hash)):
            if entry is not None:
                yield _at(f"cube.hbm.{name}", "only mapping: interleave uses this: leave it out, or null")


def efficiency_is_used(hbm: HbmSpec, controller: ComponentSpec[HbmCtrlAttrs]) -> Iterator[Complaint]:
    """Complain about an efficiency together with banks, whose timings already decide the usable bandwidth."""
    if hbm.banks is not None and controller.attrs.efficiency is not None:
        path = "cube.components.hbm_ctrl.attrs.efficiency"
        yield _at(path, "only timing: ideal uses this, timings of banks decide their bandwidth: leave it out, or null")


def link_carries_the_peak(hbm: HbmSpec, links: CubeLinks) -> Iterator[Complaint]:
    """Check that the link to a slice carries the bandwidth of all buses of the slice together."""
    banks, carried = hbm.banks, links.xbar_to_hbm.bw_gbs
    if banks is None or hbm.num_pcs * banks.pc_gbs <= carried:
        return
    peak_gbs = hbm.num_pcs * banks.pc_gbs
    peak = f"{hbm.num_pcs} pseudo-channels of {banks.pc_gbs:g} GB/s are {peak_gbs:g} GB/s"
    advice = f"cube.links.xbar_to_hbm.bw_gbs={_at_least(peak_gbs)} carries them"
    fitting = int(carried / banks.pc_gbs)
    if fitting:
        advice += f", or cube.hbm.num_pcs={1 << fitting.bit_length() - 1} is as many as it can carry"
    yield _at("cube.hbm.num_pcs", f"{peak}, but cube.links.xbar_to_hbm carries {carried:g}; {advice}")


def _at_least(number: float) -> str:
    """Return a number with six digits, rounded up."""
    written = f"{number:g}"
    if float(written) < number:
        written = f"{number * (1 + 1e-5):g}"
    return written


def banks_can_be(hbm: HbmSpec) -> Iterator[Complaint]:
    """Check that rows hold whole bursts, refresh leaves time for work, and the low watermark is below the high one."""
    banks = hbm.banks
    if banks is None:
        return
    if banks.row_bytes % banks.burst_bytes:
        yield _at(
            "cube.hbm.timing", f"row_bytes is {banks.row_bytes}, must be a multiple of {banks.burst_bytes}, a burst"
        )
        return
    if hbm.num_pcs * banks.banks_per_pc > MOST_BANKS:
        product = f"{hbm.num_pcs} x {banks.stacks} x {banks.groups} x {banks.banks} banks a slice"
        yield _at("cube.hbm.timing", f"{product}, must be at most {MOST_BANKS} in all")
        return
    if banks.refresh_share >= 1:
        yield _at("cube.hbm.timing", f"refresh takes {banks.refresh_share:.0%} of the time (refi_ns is too short)")
    column_ns, most_ns = banks.column_bus_ns or 0.0, banks.ccd_s_ns / banks.pcs_per_channel
    if column_ns > most_ns:
        bound = f"{most_ns:g}: {banks.pcs_per_channel} for each burst (ccd_s_ns) is the most that the row bus carries"
        yield _at("cube.hbm.timing", f"column_bus_ns is {column_ns:g}, must be at most {bound}")
    if banks.low >= banks.high:
        yield _at("cube.hbm.timing", f"low is {banks.low:g}, must be less than high, which is {banks.high:g}")
    if hbm.interleaves and (hbm.interleave_bytes % banks.burst_bytes or banks.row_bytes % hbm.interleave_bytes):
        bounds = f"a multiple of {banks.burst_bytes}, a burst, that divides {banks.row_bytes}, a row"
        yield _at("cube.hbm.burst_bytes", f"found {hbm.interleave_bytes}, must be {bounds}")
        return
    yield from _mapping_fits(hbm, banks, hbm.fields(banks))


def _mapping_fits(hbm: HbmSpec, banks: HbmTiming, mapping: AddressMapping) -> Iterator[Complaint]:
    names: list[str] = [entry.field for entry in mapping]
    missing = [name for name in (*MAPPED_ONCE, "column", "row") if name not in names]
    if missing or any(names.count(name) > 1 for name in (*MAPPED_ONCE, "row")) or names[-1] != "row":
        rule = "must have pc, stack, group and bank once each, column once or more, and row as the last"
        yield _at("cube.hbm.mapping", f"found {', '.join(names) or 'no fields'}; {rule}")
        return
    columns = [entry for entry in mapping if entry.field == "column"]
    product = 1
    for entry in columns[:-1]:
        product *= entry.values or banks.columns
    if banks.columns % product or (columns[-1].values or banks.columns // product) * product != banks.columns:
        yield _at("cube.hbm.mapping", f"the columns must make up the {banks.columns} bursts of a row, and do not")
    for i, entry in enumerate(mapping):
        if entry.values is not None and entry.field != "column":
            yield _at(f"cube.hbm.mapping[{i}].values", f"only columns can be split: {entry.field} has all its values")
    yield from _folds_fit(hbm, banks, mapping)
    circle = _find_fold_circle(mapping)
    if circle:
        fault = (
            f"{one_of(circle)} are folded into each other" if len(circle) > 1 else f"{circle[0]} is folded into itself"
        )
        yield _at("cube.hbm.mapping", f"{fault}: several addresses would map to one place")


def _find_fold_circle(mapping: AddressMapping) -> list[str]:
    """Return the fields that cannot be recovered from an address, because their folds depend on each other."""
    names: list[str] = [entry.field for entry in mapping]
    needs: dict[str, set[str]] = {
        entry.field: set(names[i + 1 :]) if entry.fold == "above" else {entry.fold}
        for i, entry in enumerate(mapping)
        if entry.fold is not None
    }
    recovered = [name for name in names if name not in needs]
    while recoverable := [name for name, sources in needs.items() if sources <= set(recovered)]:
        recovered += recoverable
        needs = {name: sources for name, sources in needs.items() if name not in recoverable}
    return list(needs)


def _folds_fit(hbm: HbmSpec, banks: HbmTiming, mapping: AddressMapping) -> Iterator[Complaint]:
    """Check that XOR folds lead to existing banks: a folded field and all fields below it have 2ⁿ values.

    The order of the fields in a bank's number is PC, stack, group, bank.
    """
    sizes = {"bank": banks.banks, "group": banks.groups, "stack": banks.stacks, "pc": hbm.num_pcs}
    for i, entry in enumerate(mapping):
        if entry.fold is None:
            continue
        path = f"cube.hbm.mapping[{i}].fold" if isinstance(hbm.mapping, tuple) else "cube.hbm.mapping"
        size = sizes.get(entry.field)
        below = list(sizes)[: list(sizes).index(entry.field)] if size else []
        odd = [name for name in below if sizes[name].bit_count() != 1]
        if size is None or size.bit_count() != 1:
            if hbm.interleaves and entry.field == "pc":
                continue  # channels_and_pieces reports this
            problem = f"{entry.field} has {size} values" if size else f"this is a {entry.field}"
            yield _at(path, f"{problem}; only pc, stack, group and bank of 2ⁿ values take a fold")
        elif odd:
            problem = one_of(f"{name} has {sizes[name]} values" for name in odd)
            other = "; channel_hash: mod folds nothing" if hbm.interleaves and hbm.mapping != "hash" else ""
            yield _at(
                "cube.hbm.timing",
                f"{problem}, must be a power of two where something is folded into {entry.field}{other}",
            )


# --- PEs and memories -----------------------------------------------------------------------------------------------


def _tile_takes_no_age(gemm: GemmSpec) -> Iterator[Complaint]:
    slowest = max(gemm.operand_dtypes, key=gemm.tile_ns)
    tile_ns, tile = gemm.tile_ns(slowest), " x ".join(map(str, gemm.tile_sizes))
    if tile_ns > LONGEST_NS:
        took = f"takes {tile_ns:g} ns in {slowest.name}, must be at most {LONGEST_NS:g} ns"
        yield _at("pe.gemm", f"a tile of {tile} {took}")


def _is_power_of_two(path: str, number: int) -> Iterator[Complaint]:
    if number.bit_count() != 1:
        yield _at(path, f"found {number}, must be a power of two")


def queues_pace_nothing(parts: PeComponents) -> Iterator[Complaint]:
    """Complain about a rate limit of ``pe_ipcq``: such a limit applies to links, and ``pe_ipcq`` has no links."""
    if parts.pe_ipcq.attrs.rate_gbs is not None:
        yield _at("pe.components.pe_ipcq.attrs.rate_gbs", "no link leaves this part: pe_dma sends its messages")


def _banks_hold_packets(path: str) -> Callable[[BankedSpec, TransportSpec], Iterator[Complaint]]:
    """Return a check of ``bank_bytes``: a power of two and, if there are several banks, at least a packet."""

    def check(memory: BankedSpec, transport: TransportSpec) -> Iterator[Complaint]:
        if memory.banks > 1 and memory.bank_bytes < transport.packet_bytes:
            limit = f"must be at least transport.packet_bytes, which is {transport.packet_bytes}"
            yield _at(f"{path}.bank_bytes", f"found {memory.bank_bytes}, {limit}: a bank serves whole packets")
        yield from _is_power_of_two(f"{path}.bank_bytes", memory.bank_bytes)

    return check


# --- FIFOs ----------------------------------------------------------------------------------------------------------


def _transport_fifos_hold_packets(transport: TransportSpec) -> Iterator[Complaint]:
    sizes = {"fifo_bytes": transport.fifo_bytes, "long_link_fifo_bytes": transport.long_link_fifo_bytes}
    for name, size in sizes.items():
        yield from _holds_packets(f"transport.{name}", size, transport)


def _holds_packets(path: str, size: int | None, transport: TransportSpec) -> Iterator[Complaint]:
    """Check that a FIFO holds four packets; with fewer, a link waits for credits that no hardware would lack."""
    if size is not None and size < transport.least_fifo:
        packets = f"{PACKETS_PER_FIFO} packets of transport.packet_bytes, which is {transport.packet_bytes}"
        advice = f"must be at least {transport.least_fifo}: {packets}; --set {path}=null is always enough"
        yield _at(path, f"found {size}, {advice}")


def _link_rule(section: str) -> TopologyRule:
    def check(transport: TransportSpec, links: ConfigModel) -> Iterator[Complaint]:
        for name, link in links:
            yield from _link_fifo(f"{section}.{name}.fifo_bytes", link, transport)

    return TopologyRule(("transport", section), check)


def _extra_rule(section: str) -> TopologyRule:
    def check(transport: TransportSpec, place: CubeSpec | PeSpec) -> Iterator[Complaint]:
        for name, part in place.extra.items():
            for index, link in enumerate(part.links):
                yield from _link_fifo(f"{section}.extra.{name}.links[{index}].fifo_bytes", link, transport)

    return TopologyRule(("transport", section), check)


def _link_fifo(path: str, link: LinkSpec, transport: TransportSpec) -> Iterator[Complaint]:
    if link.fifo_bytes is not None and link.unbounded:
        yield _at(path, "a link with fifo: unbounded has no size; leave out one of the two")
        return
    yield from _holds_packets(path, link.fifo_bytes, transport)


# --- extra parts ----------------------------------------------------------------------------------------------------


def cube_extras_fit(cube: CubeSpec) -> Iterator[Complaint]:
    """Check the extra parts of a cube: their links lead to the components of the cube outside its PEs."""
    if cube.extra:
        names = names_in_cube(cube)
        pes = [f"pe{pe}" for pe in range(cube.pe_layout.pes)]
        yield from _extras_fit(("cube", "extra"), cube.extra, neighbours=names, reserved=(*names, *pes), of="the cube")
    yield from _has_addresses("cube", cube.extra_memories, CUBE_WINDOWS_BYTES, "SRAM and the extra memories of a cube")


def pe_extras_fit(pe: PeSpec) -> Iterator[Complaint]:
    """Check the extra parts of a PE: they link to its components that have links, or to the xbar of its corner."""
    yield from _extras_fit(
        ("pe", "extra"), pe.extra, neighbours=(*LINKED_PE_KINDS, XBAR), reserved=(*PE_KINDS, XBAR), of="a PE"
    )
    yield from _has_addresses("pe", pe.extra_memories, PE_WINDOWS_BYTES, "extra memories of a PE")


def _extras_fit(
    at: Path, extra: Mapping[str, ExtraPart], *, neighbours: Collection[str], reserved: Collection[str], of: str
) -> Iterator[Complaint]:
    if len(extra) > MOST_IN_A_PLACE:
        yield Complaint(at, f"found {len(extra)} extra parts, must be at most {MOST_IN_A_PLACE}")
    for name, part in extra.items():
        if name in reserved:
            yield Complaint((*at, name), f"{of} has a part {name!r} already", at_key=True)
        candidates = [neighbour for neighbour in (*neighbours, *extra) if neighbour != name]
        for index, link in enumerate(part.links):
            listed = [earlier.to for earlier in part.links[:index]]
            for message in _link_problems(name, link.to, listed, candidates, extra):
                yield Complaint((*at, name, "links", index, "to"), message)
    if all(link.to in neighbours or link.to in extra for part in extra.values() for link in part.links):
        for name in unreachable(extra):
            yield Complaint((*at, name, "links"), f"no route leads to the parts of {of}, only to extra parts")


def _link_problems(
    name: str, end: str, listed: Collection[str], candidates: Collection[str], extra: Mapping[str, ExtraPart]
) -> Iterator[str]:
    """Yield the problems of a link from part ``name`` to ``end``; ``listed`` are the ends of its other links so far."""
    before = list(extra)[: list(extra).index(name)]
    if end not in candidates:
        yield f"unknown neighbour {end!r}; {close_to(end, candidates)}there are: {one_of(candidates)}"
    elif end in listed:
        yield f"{end} is listed twice; each neighbour once"
    elif end in before and any(link.to == name for link in extra[end].links):
        yield f"{end} lists this link already; it goes both ways"


def _has_addresses(section: str, memories: Collection[AddressWindow], limit: int, owners: str) -> Iterator[Complaint]:
    overflow = next((window for window in memories if window.end > limit), None)
    if overflow is not None:
        size = f"{format_size(overflow.nbytes)} from {format_size(overflow.offset)} on"
        rule = f"the {owners} have {format_size(limit)} of addresses, and each begins at a multiple of"
        yield Complaint((section, "extra", overflow.name, "bytes"), f"{size}, but {rule} {format_size(WINDOW_BYTES)}")


# --- the size of a machine ------------------------------------------------------------------------------------------


@value
class Census:
    """Numbers of components and directed links."""

    parts: int = 0
    links: int = 0

    def __add__(self, other: Census) -> Census:
        return Census(self.parts + other.parts, self.links + other.links)

    def __mul__(self, times: int) -> Census:
        return Census(self.parts * times, self.links * times)

    @property
    def total(self) -> int:
        """The number of components and links together."""
        return self.parts + self.links


def count_machine(
    sips: SipsSpec, mesh: CubeMeshSpec, chiplet: IoChipletSpec, noc: NocSpec, layout: PeLayoutSpec, hbm: HbmSpec
) -> dict[str, Census]:
    """Count all components and links, by the section of the file that determines them."""
    cubes = sips.count * len(mesh.grid)
    routers = Census(len(noc.grid), 2 * _pairs(noc.grid)) * cubes
    slices = Census(hbm.slices, 2 * hbm.slices) * cubes
    # A UCIe port on each side, the M_CPU and the SRAM; an xbar at each corner; DMA and CPU of a PE have a link.
    cube_parts = Census(6, 12) + Census(1, 2) * len(layout.corners) + Census(PARTS_PER_PE, 4) * layout.pes
    return {
        "cube.noc": routers,
        "cube.hbm.slices": slices,
        "sip.cube_mesh": cube_parts * cubes + _io_chiplet(mesh, chiplet) * sips.count,
        "system.sips": Census(2, 2) + _fabric(sips),
    }


def count_extras(sips: SipsSpec, mesh: CubeMeshSpec, cube: CubeSpec, pe: PeSpec) -> dict[str, Census]:
    """Count the extra parts and their links, by section."""
    cubes = sips.count * len(mesh.grid)
    return {
        "cube.extra": _of_extras(cube.extra.values()) * cubes,
        "pe.extra": _of_extras(pe.extra.values()) * (cubes * cube.pe_layout.pes),
    }


def _of_extras(parts: Iterable[ExtraPart]) -> Census:
    return sum((Census(1, 2 * len(part.links)) for part in parts), Census())


def _pairs(grid: Grid) -> int:
    """Count the pairs of neighbours in a grid."""
    return (grid.w - 1) * grid.h + grid.w * (grid.h - 1)


def _io_chiplet(mesh: CubeMeshSpec, chiplet: IoChipletSpec) -> Census:
    """Count the IO chiplet of a SIP without its scale-up ports, and the links between its cubes."""
    ucies = mesh.w if chiplet.edge in {"N", "S"} else mesh.h
    return Census(3, 6) + Census(1, 4) * ucies + Census(0, 2 * _pairs(mesh.grid))


def _fabric(sips: SipsSpec) -> Census:
    """Count the scale-up ports and their links."""
    grid, count = sips.grid, sips.count
    around = 2 * (grid.w > 1) + 2 * (grid.h > 1)
    ports = {"fully_connected": count * (count - 1), "mesh_2d_no_wrap": 2 * _pairs(grid), "switch": 0}
    port_count = ports.get(sips.topology, around * count)
    sending = port_count // 2 if sips.topology == "ring_1d_unidir" else port_count
    return Census(port_count, 2 * port_count + sending)


def _size_is_bearable(
    sips: SipsSpec, mesh: CubeMeshSpec, chiplet: IoChipletSpec, noc: NocSpec, layout: PeLayoutSpec, hbm: HbmSpec
) -> Iterator[Complaint]:
    """Refuse a machine that is too large to compile, at the section with the largest count."""
    yield from _too_many(count_machine(sips, mesh, chiplet, noc, layout, hbm), Census())


def _extras_are_bearable(
    sips: SipsSpec, mesh: CubeMeshSpec, chiplet: IoChipletSpec, cube: CubeSpec, pe: PeSpec
) -> Iterator[Complaint]:
    builtin = count_machine(sips, mesh, chiplet, cube.noc, cube.pe_layout, cube.hbm)
    if not list(_too_many(builtin, Census())):
        yield from _too_many(count_extras(sips, mesh, cube, pe), sum(builtin.values(), Census()))


def _too_many(counted: dict[str, Census], base: Census) -> Iterator[Complaint]:
    """Complain if ``base`` plus the components and links counted by section are too many."""
    total = sum(counted.values(), base)
    if total.total > MOST_PARTS_AND_LINKS:
        size = f"the machine would have {total.parts:,} parts and {total.links:,} links"
        memory = format_size(total.total * BYTES_PER_PART_OR_LINK)
        limit = f"at most {MOST_PARTS_AND_LINKS:,} in all: it would take some {memory} of memory"
        yield _at(max(counted, key=lambda path: counted[path].total), f"{size}, {limit}")


RULES: tuple[TopologyRule, ...] = (
    TopologyRule(("system.sips",), _sips_form_a_grid),
    TopologyRule(("address", "system.sips"), _sips_have_addresses),
    TopologyRule(("address", "sip.cube_mesh"), _cubes_have_addresses),
    TopologyRule(("cube.pe_layout",), _pes_have_addresses),
    TopologyRule(("cube.pe_layout",), _corners_are_distinct),
    TopologyRule(("cube.pe_layout", "cube.hbm"), _slices_fill_corners),
    TopologyRule(
        ("system.sips", "sip.cube_mesh", "sip.io_chiplet", "cube.noc", "cube.pe_layout", "cube.hbm"), _size_is_bearable
    ),
    TopologyRule(("cube.hbm",), _hbm_has_addresses),
    TopologyRule(("cube.hbm",), channels_and_pieces),
    TopologyRule(("cube.hbm",), keys_are_used),
    TopologyRule(("cube.hbm",), banks_can_be),
    TopologyRule(("cube.hbm", "cube.components.hbm_ctrl"), efficiency_is_used),
    TopologyRule(("cube.hbm", "cube.links"), link_carries_the_peak),
    TopologyRule(("cube.sram",), _sram_has_addresses),
    TopologyRule(("pe.tcm",), _tcm_fits),
    TopologyRule(("pe.gemm",), _tile_takes_no_age),
    TopologyRule(("pe.gemm", "energy"), macs_have_energies),
    TopologyRule(("pe.components",), queues_pace_nothing),
    TopologyRule(("pe.mmu",), lambda mmu: _is_power_of_two("pe.mmu.page_bytes", mmu.page_bytes)),
    *(TopologyRule((path, "transport"), _banks_hold_packets(path)) for path in ("cube.sram", "pe.tcm")),
    TopologyRule(("transport",), _transport_fifos_hold_packets),
    *(_link_rule(section) for section in ("system.links", "sip.links", "cube.links")),
    TopologyRule(("system.sips", "sip.cube_mesh", "sip.io_chiplet", "cube", "pe"), _extras_are_bearable),
    TopologyRule(("cube",), cube_extras_fit),
    TopologyRule(("pe",), pe_extras_fit),
    *(_extra_rule(section) for section in ("cube", "pe")),
)


def check_rules(section_at: Callable[[str], Any]) -> Iterator[Complaint]:
    """Yield every complaint; ``section_at`` returns the section at a path, or None if it is invalid by itself."""
    for rule in RULES:
        sections = [section_at(path) for path in rule.sections]
        if all(section is not None for section in sections):
            yield from rule.check(*sections)
