"""What must hold between the values of a topology.

A rule names the sections it looks at and complains about entries, by path. Each is asked as soon as its sections are
sound by themselves, so a slip in one part of the file does not hide a contradiction in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kernbench.common.complaints import one_of
from kernbench.common.config import Complaint, ConfigModel, path_of
from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.topology import hbm_rules
from kernbench.topology.census import Census, count_extras, count_machine
from kernbench.topology.cube_spec import CubeSpec, HbmSpec, NocSpec, PeLayoutSpec, SramSpec
from kernbench.topology.extra_rules import cube_extras_fit, pe_extras_fit
from kernbench.topology.fields import BankedSpec, LinkSpec
from kernbench.topology.pe_spec import GemmSpec, MmuSpec, PeSpec, TcmSpec
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
"""Of a compiled machine and what the engine keeps to find its way in it; a few µs each too."""
LONGEST_NS = 1e12
"""As of every duration in the file: it keeps simulated time far from the end of the clock."""


@value
class FormatLimits:
    """How many bits an address format has for a SIP and for a cube of it."""

    sip_bits: int
    cube_bits: int


FORMATS = {"narrow": FormatLimits(4, 5), "wide": FormatLimits(10, 8)}


@value
class Rule:
    """A check over the sections at these paths, given to it in this order."""

    sections: tuple[str, ...]
    check: Callable[..., Iterable[Complaint]]


def _at(path: str, message: str) -> Complaint:
    return Complaint(path_of(path), message)


def _sips_form_a_grid(sips: SipsSpec) -> Iterator[Complaint]:
    """2-D kinds need w x h = count; the others have no w and h."""
    given = [name for name, value in (("w", sips.w), ("h", sips.h)) if value is not None]
    if not sips.two_dimensional:
        only = f"only {one_of(TWO_DIMENSIONAL)} take w and h, not {sips.topology}"
        yield from (_at(f"system.sips.{name}", only) for name in given)
    elif len(given) == 1:
        missing = "h" if given == ["w"] else "w"
        yield _at(f"system.sips.{given[0]}", f"{given[0]} is given without {missing}; give both or neither")
    elif given and len(sips.grid) != sips.count:
        product = f"w x h = {sips.w} x {sips.h} = {len(sips.grid)}"
        yield _at("system.sips.count", f"found {sips.count}, but {product}; they must be equal")
    elif not given and math.isqrt(sips.count) ** 2 != sips.count:
        h = _largest_divisor_up_to_root(sips.count)
        advice = f"give w and h with w x h = {sips.count}, for example w: {sips.count // h}, h: {h}"
        yield _at("system.sips.count", f"{sips.count} SIPs are no square, which a {sips.topology} needs; {advice}")


def _largest_divisor_up_to_root(count: int) -> int:
    return next(d for d in range(math.isqrt(count), 0, -1) if count % d == 0)


def _sips_have_addresses(address: AddressSpec, sips: SipsSpec) -> Iterator[Complaint]:
    yield from _fits(address, "system.sips.count", sips.count, "sip_id", {k: f.sip_bits for k, f in FORMATS.items()})


def _cubes_have_addresses(address: AddressSpec, mesh: CubeMeshSpec) -> Iterator[Complaint]:
    bits = {name: limits.cube_bits for name, limits in FORMATS.items()}
    yield from _fits(address, "sip.cube_mesh", len(mesh.grid), "sip_seg (the cube)", bits)


def _fits(address: AddressSpec, path: str, count: int, field: str, bits: dict[str, int]) -> Iterator[Complaint]:
    own = bits[address.format]
    if count > 1 << own:
        wider = [f"address.format: {name} takes {1 << b}" for name, b in bits.items() if count <= 1 << b]
        limit = f"field {field} of the {address.format} address format has {own} bits: at most {1 << own}"
        yield _at(path, "; ".join([f"{_count_text(path, count)}, but {limit}", *wider]))


def _count_text(path: str, count: int) -> str:
    return f"w x h is {count} cubes" if path == "sip.cube_mesh" else f"found {count}"


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
        found = f"found {format_size(tcm.scheduler_reserved_bytes)}"
        limit = f"must be less than pe.tcm.bytes, which is {format_size(tcm.bytes)}: kernels need the rest"
        yield _at("pe.tcm.scheduler_reserved_bytes", f"{found}, {limit}")


def _corners_are_distinct(layout: PeLayoutSpec) -> Iterator[Complaint]:
    for index, corner in enumerate(layout.corners):
        if corner in layout.corners[:index]:
            yield _at(f"cube.pe_layout.corners[{index}]", f"{corner} is listed twice; each corner once")


def _slices_fill_corners(layout: PeLayoutSpec, hbm: HbmSpec) -> Iterator[Complaint]:
    corners = len(layout.corners)
    if hbm.slices % corners:
        advice = f"must be a multiple of the {corners} corners, so that each has as many"
        yield _at("cube.hbm.slices", f"found {hbm.slices}, {advice}")


def _size_is_bearable(
    sips: SipsSpec, mesh: CubeMeshSpec, chiplet: IoChipletSpec, noc: NocSpec, layout: PeLayoutSpec, hbm: HbmSpec
) -> Iterator[Complaint]:
    """What cannot be compiled is refused before it is tried, at the section that most of it follows from."""
    yield from _too_many(count_machine(sips, mesh, chiplet, noc, layout, hbm), Census())


def _extras_are_bearable(
    sips: SipsSpec, mesh: CubeMeshSpec, chiplet: IoChipletSpec, cube: CubeSpec, pe: PeSpec
) -> Iterator[Complaint]:
    builtin = count_machine(sips, mesh, chiplet, cube.noc, cube.pe_layout, cube.hbm)
    if not list(_too_many(builtin, Census())):
        yield from _too_many(count_extras(sips, mesh, cube, pe), sum(builtin.values(), Census()))


def _too_many(counted: dict[str, Census], others: Census) -> Iterator[Complaint]:
    """Parts and links by section, and ``others`` that are there too."""
    found = sum(counted.values(), others)
    if found.total > MOST_PARTS_AND_LINKS:
        size = f"the machine would have {found.parts:,} parts and {found.links:,} links"
        memory = format_size(found.total * BYTES_PER_PART_OR_LINK)
        limit = f"at most {MOST_PARTS_AND_LINKS:,} in all: it would take some {memory} of memory"
        yield _at(max(counted, key=lambda path: counted[path].total), f"{size}, {limit}")


def _tile_takes_no_age(gemm: GemmSpec) -> Iterator[Complaint]:
    slowest = max(gemm.operand_dtypes, key=gemm.tile_ns)
    tile_ns = gemm.tile_ns(slowest)
    if tile_ns > LONGEST_NS:
        tile = " x ".join(map(str, gemm.tile_sizes))
        yield _at(
            "pe.gemm", f"a tile of {tile} takes {tile_ns:g} ns in {slowest.name}, must be at most {LONGEST_NS:g} ns"
        )


def _page_is_a_power_of_two(mmu: MmuSpec) -> Iterator[Complaint]:
    if mmu.page_bytes.bit_count() != 1:
        yield _at("pe.mmu.page_bytes", f"found {mmu.page_bytes}, must be a power of two")


def _banks_hold_packets(path: str) -> Callable[[BankedSpec, TransportSpec], Iterator[Complaint]]:
    """A memory serves packets; addresses of memories are aligned to powers of two."""

    def check(memory: BankedSpec, transport: TransportSpec) -> Iterator[Complaint]:
        if memory.banks > 1 and memory.bank_bytes < transport.packet_bytes:
            limit = f"must be at least transport.packet_bytes, which is {transport.packet_bytes}"
            yield _at(f"{path}.bank_bytes", f"found {memory.bank_bytes}, {limit}: a bank serves whole packets")
        if memory.bank_bytes.bit_count() != 1:
            yield _at(f"{path}.bank_bytes", f"found {memory.bank_bytes}, must be a power of two")

    return check


def _transport_fifos_hold_packets(transport: TransportSpec) -> Iterator[Complaint]:
    sizes = {"fifo_bytes": transport.fifo_bytes, "long_link_fifo_bytes": transport.long_link_fifo_bytes}
    for name, size in sizes.items():
        yield from _holds_packets(f"transport.{name}", size, transport)


def _holds_packets(path: str, size: int | None, transport: TransportSpec) -> Iterator[Complaint]:
    """With fewer than four packets a link waits for credits that no hardware would lack."""
    if size is not None and size < transport.least_fifo:
        packets = f"{PACKETS_PER_FIFO} packets of transport.packet_bytes, which is {transport.packet_bytes}"
        advice = f"must be at least {transport.least_fifo}: {packets}; {path}=null is always enough"
        yield _at(path, f"found {size}, {advice}")


def _link_rule(section: str) -> Rule:
    def check(transport: TransportSpec, links: ConfigModel) -> Iterator[Complaint]:
        for name, link in links:
            yield from _link_fifo(f"{section}.{name}.fifo_bytes", link, transport)

    return Rule(("transport", section), check)


def _extra_rule(section: str) -> Rule:
    def check(transport: TransportSpec, place: CubeSpec | PeSpec) -> Iterator[Complaint]:
        for name, part in place.extra.items():
            for index, link in enumerate(part.links):
                yield from _link_fifo(f"{section}.extra.{name}.links[{index}].fifo_bytes", link, transport)

    return Rule(("transport", section), check)


def _link_fifo(path: str, link: LinkSpec, transport: TransportSpec) -> Iterator[Complaint]:
    if link.fifo_bytes is not None and link.unbounded:
        yield _at(path, "a link with fifo: unbounded has no size; leave out one of the two")
        return
    yield from _holds_packets(path, link.fifo_bytes, transport)


RULES: tuple[Rule, ...] = (
    Rule(("system.sips",), _sips_form_a_grid),
    Rule(("address", "system.sips"), _sips_have_addresses),
    Rule(("address", "sip.cube_mesh"), _cubes_have_addresses),
    Rule(("cube.pe_layout",), _pes_have_addresses),
    Rule(("cube.pe_layout",), _corners_are_distinct),
    Rule(("cube.pe_layout", "cube.hbm"), _slices_fill_corners),
    Rule(
        ("system.sips", "sip.cube_mesh", "sip.io_chiplet", "cube.noc", "cube.pe_layout", "cube.hbm"), _size_is_bearable
    ),
    Rule(("cube.hbm",), _hbm_has_addresses),
    Rule(("cube.hbm",), hbm_rules.channels_and_pieces),
    Rule(("cube.hbm",), hbm_rules.keys_are_used),
    Rule(("cube.hbm",), hbm_rules.banks_can_be),
    Rule(("cube.hbm", "cube.components.hbm_ctrl"), hbm_rules.efficiency_is_used),
    Rule(("cube.hbm", "cube.links"), hbm_rules.link_carries_the_peak),
    Rule(("cube.sram",), _sram_has_addresses),
    Rule(("pe.tcm",), _tcm_fits),
    Rule(("pe.gemm",), _tile_takes_no_age),
    Rule(("pe.mmu",), _page_is_a_power_of_two),
    *(Rule((path, "transport"), _banks_hold_packets(path)) for path in ("cube.sram", "pe.tcm")),
    Rule(("transport",), _transport_fifos_hold_packets),
    *(_link_rule(section) for section in ("system.links", "sip.links", "cube.links")),
    Rule(("system.sips", "sip.cube_mesh", "sip.io_chiplet", "cube", "pe"), _extras_are_bearable),
    Rule(("cube",), cube_extras_fit),
    Rule(("pe",), pe_extras_fit),
    *(_extra_rule(section) for section in ("cube", "pe")),
)


def broken(section_at: Callable[[str], Any]) -> Iterator[Complaint]:
    """Every complaint; ``section_at`` gives the sound section at a path, or None when it is not sound."""
    for rule in RULES:
        sections = [section_at(path) for path in rule.sections]
        if all(section is not None for section in sections):
            yield from rule.check(*sections)
