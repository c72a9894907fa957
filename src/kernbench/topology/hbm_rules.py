"""What must hold of ``cube.hbm``: which keys its timing and its mapping use, and what they can be."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.common.config import Complaint, path_of
from kernbench.topology.attrs import HbmCtrlAttrs
from kernbench.topology.cube_spec import CubeLinks, HbmSpec
from kernbench.topology.fields import ComponentSpec
from kernbench.topology.hbm_timing import HbmTiming, Mapping

MOST_BANKS = 1 << 14
MAPPED_ONCE = ("pc", "stack", "group", "bank")


def _at(path: str, message: str) -> Complaint:
    return Complaint(path_of(path), message)


def channels_and_pieces(hbm: HbmSpec) -> Iterator[Complaint]:
    """Channels that are folded are a power of two; pieces fill bursts."""
    if hbm.interleaves and hbm.folds_channels and hbm.num_pcs.bit_count() != 1:
        yield _at("cube.hbm.num_pcs", f"found {hbm.num_pcs}, must be a power of two; channel_hash: mod takes any")
    if hbm.banks is None and hbm.interleave_bytes % hbm.piece_bytes:
        yield _at("cube.hbm.burst_bytes", f"found {hbm.interleave_bytes}, must be a multiple of access_bytes")
    name, least = ("access_bytes", hbm.piece_bytes) if hbm.banks is None else ("a burst", hbm.banks.burst_bytes)
    if hbm.quantum_bytes < least:
        yield _at("cube.hbm.quantum_bytes", f"found {hbm.quantum_bytes}, must be at least {name}, which is {least}")


def keys_are_used(hbm: HbmSpec) -> Iterator[Complaint]:
    """What the timing or the mapping does not use would say nothing."""
    if hbm.banks is None:
        if hbm.mapping not in (None, "interleave"):
            yield _at("cube.hbm.mapping", "timing: ideal has no banks, so it can only be interleave (or null)")
        if hbm.queue_entries is not None:
            yield _at(
                "cube.hbm.queue_entries", "timing: ideal has no banks, so nothing uses this: leave it out, or null"
            )
        return
    if hbm.access_bytes is not None:
        yield _at("cube.hbm.access_bytes", "only timing: ideal uses this, banks serve bursts: leave it out, or null")
    if not hbm.interleaves:
        for name, given in (("burst_bytes", hbm.burst_bytes), ("channel_hash", hbm.channel_hash)):
            if given is not None:
                yield _at(f"cube.hbm.{name}", "only mapping: interleave uses this: leave it out, or null")


def efficiency_is_used(hbm: HbmSpec, controller: ComponentSpec[HbmCtrlAttrs]) -> Iterator[Complaint]:
    """Banks say themselves what they can use."""
    if hbm.banks is not None and controller.attrs.efficiency is not None:
        path = "cube.components.hbm_ctrl.attrs.efficiency"
        yield _at(path, "only timing: ideal uses this, banks lose what they lose: leave it out, or null")


def link_carries_the_peak(hbm: HbmSpec, links: CubeLinks) -> Iterator[Complaint]:
    """All buses together do no more than the link to the slice."""
    banks = hbm.banks
    if banks is not None and hbm.num_pcs * banks.pc_gbs > links.xbar_to_hbm.bw_gbs:
        peak = f"{hbm.num_pcs} pseudo-channels of {banks.pc_gbs:g} GB/s are {hbm.num_pcs * banks.pc_gbs:g} GB/s"
        limit = f"cube.links.xbar_to_hbm carries {links.xbar_to_hbm.bw_gbs:g}"
        yield _at("cube.hbm.num_pcs", f"{peak}, but {limit}; at most {int(links.xbar_to_hbm.bw_gbs / banks.pc_gbs)}")


def banks_can_be(hbm: HbmSpec) -> Iterator[Complaint]:
    """Rows hold whole bursts, queues a row, and time is left beside refresh."""
    banks = hbm.banks
    if banks is None:
        return
    if banks.row_bytes % banks.burst_bytes:
        yield _at(
            "cube.hbm.timing", f"row_bytes is {banks.row_bytes}, must be a multiple of {banks.burst_bytes}, a burst"
        )
        return
    if hbm.num_pcs * banks.banks_per_pc > MOST_BANKS:
        found = f"{hbm.num_pcs} x {banks.stacks} x {banks.groups} x {banks.banks} banks a slice"
        yield _at("cube.hbm.timing", f"{found}, must be at most {MOST_BANKS} in all")
        return
    if banks.refresh_share >= 1:
        yield _at("cube.hbm.timing", f"refresh takes {banks.refresh_share:.0%} of the time (refi_ns is too short)")
    if banks.low >= banks.high:
        yield _at("cube.hbm.timing", f"low is {banks.low:g}, must be less than high, which is {banks.high:g}")
    if hbm.interleaves and (hbm.interleave_bytes % banks.burst_bytes or banks.row_bytes % hbm.interleave_bytes):
        bounds = f"a multiple of {banks.burst_bytes}, a burst, of which a row of {banks.row_bytes} has whole ones"
        yield _at("cube.hbm.burst_bytes", f"found {hbm.interleave_bytes}, must be {bounds}")
        return
    yield from _mapping_fits(hbm, banks, hbm.fields(banks))


def _mapping_fits(hbm: HbmSpec, banks: HbmTiming, mapping: Mapping) -> Iterator[Complaint]:
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
    sizes = {"pc": hbm.num_pcs, "stack": banks.stacks, "group": banks.groups, "bank": banks.banks}
    for i, entry in enumerate(mapping):
        if entry.values is not None and entry.field != "column":
            yield _at(f"cube.hbm.mapping[{i}].values", f"only columns are divided: {entry.field} has all of its values")
        if entry.fold is not None and not hbm.interleaves and sizes.get(entry.field, 3).bit_count() != 1:
            found = (
                f"{entry.field} has {sizes[entry.field]} values" if entry.field in sizes else f"this is a {entry.field}"
            )
            yield _at(
                f"cube.hbm.mapping[{i}].fold", f"{found}; folded into are pc, stack, group and bank, of 2ⁿ values"
            )
