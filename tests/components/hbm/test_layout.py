"""Where bursts lie, and which runs a quantum has."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.components.hbm.layout import RUN_BURSTS, Layout, Planner
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM2, HBM3, MAPPINGS, AddressMapping, interleave

ALL = {
    **MAPPINGS,
    "interleave": interleave(8, xor=True),
    "mod": interleave(8, xor=False),
    "hash": interleave(8, xor=True, fold_row=True),
}
SWEEP = 256 * 1024
"""8 pseudo-channels of 32 banks with rows of 1 KiB"""


LAYOUTS = [
    *(Layout(HBM3, 8, mapping) for mapping in ALL.values()),
    *(Layout(HBM3, pcs, ALL["mod"]) for pcs in (3, 6)),
    Layout(HBM3.model_copy(update={"row_bytes": 1536}), 8, ALL["hash"]),
]
"""In the last three not all sizes are powers of two"""


def planner(mapping: AddressMapping) -> Planner:
    return Planner(Layout(HBM3, 8, mapping))


def runs_of(planned: Planner, access: Access, first: int, nbytes: int) -> tuple[int, list[tuple[int, int, int]]]:
    """The base of the rows, and the runs of all channels with the numbers of banks in the slice."""
    base, fold, parts = planned.parts(access, first, nbytes)
    each = planned.layout.banks_per_channel
    found = [
        ((c * each + (bank ^ label)) ^ fold, row, n)
        for alike, runs in parts
        for c, label in alike
        for bank, row, n in runs
    ]
    assert all(1 <= n <= RUN_BURSTS for _, _, n in found)
    return base, found


def joined(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Bursts of each row of a bank, whatever the runs."""
    found: Counter[tuple[int, int]] = Counter()
    for bank, row, n in runs:
        found[bank, row] += n
    return sorted((bank, row, n) for (bank, row), n in found.items())


@pytest.mark.parametrize("timing", [HBM3, HBM2], ids=["hbm3", "hbm2"])
@pytest.mark.parametrize("mapping", ALL.values(), ids=ALL)
@pytest.mark.parametrize("row", [0, 5])
def test_a_sweep_has_every_row_of_every_bank_once(timing, mapping, row):
    layout = Layout(timing, 4, mapping)
    base, runs = runs_of(Planner(layout), Access(row * layout.sweep_bytes, layout.sweep_bytes), 0, layout.sweep_bytes)
    assert joined([(bank, base + above, n) for bank, above, n in runs]) == [
        (bank, row, timing.columns) for bank in range(4 * timing.banks_per_pc)
    ]


def test_interleaved_bursts_change_the_channel_every_256_bytes():
    # Block 9 is digit 1 of PC 1: 1 ^ 1 = PC 0. A PC has 32 banks; its group is the field above, so bank 4 of group 1.
    _, runs = runs_of(planner(ALL["interleave"]), Access(9 * 256, 256), 0, 256)
    assert runs == [(4, 0, 8)]


def test_mop4clxor_folds_columns():
    # Burst 5 (160 B): column 1, and 1 above it: PC 1 ^ 1 = 0. Then column bits above the PC's are 0.
    _, runs = runs_of(planner(ALL["MOP4CLXOR"]), Access(160, 32), 0, 32)
    assert runs == [(0, 0, 1)]


def test_robaracoch_fills_a_row_first():
    _, runs = runs_of(planner(ALL["RoBaRaCoCh"]), Access(0, 2048), 0, 2048)
    assert joined(runs) == [(0, 0, 32), (32, 0, 32)]
    assert [n for _, _, n in runs] == [8] * 8


def test_bursts_that_rows_share_are_read_once():
    # 4 rows of 16 B, 16 B apart, are 2 bursts.
    _, runs = runs_of(planner(ALL["RoBaRaCoCh"]), Access(0, 16, 4, 16), 0, 64)
    assert runs == [(0, 0, 2)]


@given(
    layout=st.sampled_from(LAYOUTS),
    other=st.integers(0, 4 * SWEEP),
    pa=st.integers(0, 4 * SWEEP),
    row_bytes=st.integers(1, 600),
    rows=st.integers(1, 20),
    stride=st.integers(1, 3 * SWEEP),
)
def test_what_is_kept_is_what_is_worked_out(layout, other, pa, row_bytes, rows, stride):
    """The runs of an access are those of its own, whatever was asked before at other places."""
    stride = max(stride, row_bytes + 64)  # no two rows share a burst
    kept = Planner(layout)
    for place in (pa % SWEEP, pa % 4096, other // 4096 * 4096 + pa % 4096):
        kept.parts(Access(place, row_bytes, rows, stride), 0, rows * row_bytes)
    access = Access(pa, row_bytes, rows, stride)
    base, runs = runs_of(kept, access, 0, access.nbytes)
    found: Counter[tuple[int, int]] = Counter()
    for bank, row, n in runs:
        found[bank, base + row] += n
    alone: Counter[tuple[int, int]] = Counter()
    for i in range(rows):
        base, runs = runs_of(Planner(layout), Access(pa + i * stride, row_bytes), 0, row_bytes)
        for bank, row, n in runs:
            alone[bank, base + row] += n
    assert found == alone
