"""The mapping ``hash``: aligned streams spread over banks, and every address is a place of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slice_support import counters_of

from kernbench.components.hbm.banks import BankedMemory, Histories
from kernbench.components.hbm.controller import Request, SliceArbiter
from kernbench.components.hbm.layout import Layout, Planner
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_places import BurstPlaces
from kernbench.topology.hbm_spec import HBM3, MAPPINGS, PRESETS, AddressMapping, HbmSpec, MappingField, interleave

HASH = interleave(8, xor=True, fold_row=True)
FIELDS = ("pc", "stack", "group", "bank", "column", "row")
SLICE = 6 << 30


def hbm(**changes: object) -> HbmSpec:
    given = {"slices": 8, "bytes_per_slice": SLICE, "num_pcs": 8, "quantum_bytes": 2048, "timing": "hbm3"}
    return HbmSpec.model_validate({**given, **changes})


def places_of(spec: HbmSpec) -> BurstPlaces:
    banks = spec.banks
    assert banks is not None
    return BurstPlaces(banks, spec.num_pcs, spec.fields(banks))


@pytest.mark.parametrize("timing", PRESETS)
@pytest.mark.parametrize("mapping", ["hash", "interleave", *MAPPINGS])
@pytest.mark.parametrize("num_pcs", [1, 2])
def test_every_burst_has_a_place_of_its_own(timing, mapping, num_pcs):
    """Address to place is one to one: over many rows each place of each bank comes once."""
    spec, rows = hbm(timing=timing, mapping=mapping, num_pcs=num_pcs), 40
    banks = spec.banks
    assert banks is not None
    each = num_pcs * banks.banks_per_pc * banks.columns
    found = places_of(spec).of(np.arange(rows * each, dtype=np.int64))
    sizes = (num_pcs, banks.stacks, banks.groups, banks.banks, banks.columns, rows)
    assert all(found[name].min() >= 0 and found[name].max() < size for name, size in zip(FIELDS, sizes, strict=True))
    assert np.bincount(np.ravel_multi_index([found[name] for name in FIELDS], sizes)).tolist() == [1] * (rows * each)


@given(st.lists(st.integers(0, SLICE // 32 - 1), min_size=2, max_size=50, unique=True))
def test_far_bursts_have_places_of_their_own(bursts):
    found = places_of(hbm(mapping="hash")).of(np.array(bursts, dtype=np.int64))
    assert len({tuple(int(found[name][i]) for name in FIELDS) for i in range(len(bursts))}) == len(bursts)


def test_a_list_of_fields_says_the_same():
    fields = (
        MappingField(field="column", values=8),
        MappingField(field="pc", fold="above"),
        MappingField(field="group", fold="row"),
        MappingField(field="stack"),
        MappingField(field="bank", fold="row"),
        MappingField(field="column"),
        MappingField(field="row"),
    )
    assert hbm(mapping="hash").fields(HBM3) == fields == hbm(mapping=fields).fields(HBM3)


def test_the_row_goes_round_group_and_bank_by_hand():
    # Row 0b11_01_00_10: groups take 10 and 01, so 3; banks take 00 and 11, so 3.
    each = 8 * HBM3.banks_per_pc * HBM3.columns
    found = places_of(hbm(mapping="hash", channel_hash="mod")).of(np.array([0b11010010 * each], dtype=np.int64))
    assert {name: int(found[name][0]) for name in FIELDS} == {
        "pc": 0,
        "stack": 0,
        "group": 3,
        "bank": 3,
        "column": 0,
        "row": 0b11010010,
    }


class Asked(Request):
    """A read that nobody waits for."""

    def begin(self, first, grant):
        pass

    def cut(self, end):
        pass


def part_of_peak(mapping: AddressMapping, streams: int, apart: int) -> float:
    """The part of its peak that a slice gives to streams that begin ``apart`` bytes from each other."""
    memory, clock = BankedMemory(Histories(HBM3, 8, mapping, 64), 2048), Clock()
    turns = SliceArbiter(memory, clock)
    for i in range(40):
        for stream in range(streams):
            turns.submit(Asked(stream, Access(stream * apart + i * 2048, 2048), False, 0))
    clock.advance()
    return counters_of(memory).done[0] * 32_000 / memory.end_ps / (8 * HBM3.pc_gbs)


@pytest.mark.parametrize("apart", [256 << 10, 1 << 20, 64 << 20, 512 << 20, SLICE // 8])
def test_aligned_streams_spread(apart):
    plain, folded = (part_of_peak(mapping, 8, apart) for mapping in (interleave(8, xor=True), HASH))
    assert plain < 0.35
    assert folded > 0.55


def test_one_stream_is_as_fast():
    plain, folded = (part_of_peak(mapping, 1, 0) for mapping in (interleave(8, xor=True), HASH))
    assert folded == pytest.approx(plain, rel=0.01)


def test_plans_are_found_again_whatever_the_row():
    """What is folded is XORed with all banks of a quantum: its runs are one plan in all rows."""
    planner = Planner(Layout(HBM3, 8, HASH))
    sweep = planner.layout.sweep_bytes
    plans = {id(planner.parts(Access(row * sweep + 4096, 2048), 0, 2048)[2]) for row in range(2000)}
    assert len(plans) == 1
