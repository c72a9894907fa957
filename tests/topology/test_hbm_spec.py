"""``cube.hbm``: timings, mappings, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from compiled import compiled
from ideal_memory import IDEAL
from kernbench.common.errors import ConfigError
from kernbench.components.hbm.banks import BankedMemory, Histories
from kernbench.components.hbm.layout import Layout
from kernbench.messages.fabric import Access
from kernbench.topology.builder import resolve_topology
from kernbench.topology.hbm_places import bank_step_bytes
from kernbench.topology.hbm_spec import HBM2, HBM3, HbmSpec, HbmTiming, Refresh, interleave

ACCESS = "cube.components.hbm_ctrl.attrs.access_ns"
PLAIN = ("cube.hbm.burst_bytes=512",)
FIELDS = "[{field: pc}, {field: group}, {field: column}, {field: stack}, {field: bank, fold: row}, {field: row}]"


def hbm(*changes: str) -> HbmSpec:
    return compiled(*changes).spec.cube.hbm


def mapping(old: str = "", new: str = "") -> str:
    return f"cube.hbm.mapping={FIELDS.replace(old, new) if old else FIELDS}"


def test_timings_have_names_and_values():
    assert hbm().banks == HBM3
    assert hbm("cube.hbm.timing=ideal").banks is None
    assert hbm("cube.hbm.timing=hbm2").banks == HBM2
    assert hbm("cube.hbm.timing={rc_ns: 50}").banks == HbmTiming(rc_ns=50.0)


def test_mappings_have_names_and_fields():
    assert hbm().fields(HBM3) == interleave(8, xor=True)
    plain = hbm("cube.hbm.channel_hash=mod", "cube.hbm.burst_bytes=512")
    assert plain.fields(HBM3) == interleave(16, xor=False)
    fields = hbm(mapping()).fields(HBM3)
    assert [(entry.field, entry.fold) for entry in fields[3:5]] == [("stack", None), ("bank", "row")]


@pytest.mark.parametrize(
    ("change", "nbytes"),
    [
        ("cube.hbm.mapping=interleave", 8 * 256),  # all PCs
        ("cube.hbm.mapping=MOP4CLXOR", 8 * 128),
        ("cube.hbm.mapping=RoBaRaCoCh", 8 * 1024),  # the rows of all PCs
        ("cube.hbm.timing=ideal", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*tiles of such matrices")
def test_a_step_to_the_next_bank(change: str, nbytes: int):
    spec = hbm(change)
    assert bank_step_bytes(spec) == nbytes
    if spec.banks is not None:
        layout = Layout(spec.banks, spec.num_pcs, spec.fields(spec.banks))
        assert layout.bank_of(0) // layout.banks_per_channel == layout.bank_of(nbytes) // layout.banks_per_channel
        assert layout.bank_of(0) != layout.bank_of(nbytes)


def test_ideal_is_as_packaged_whatever_else_was_left_out():
    cube = compiled("cube.hbm.timing=ideal").spec.cube
    assert (cube.slice_bw_gbs, cube.hbm.piece_bytes, cube.hbm.interleave_bytes) == (pytest.approx(204.8), 64, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([*IDEAL, "cube.hbm.mapping=MOP4CLXOR"], "cube.hbm.mapping: timing: ideal has no banks"),
        ([*IDEAL, "cube.hbm.queue_entries=8"], "cube.hbm.queue_entries: timing: ideal has no banks"),
        ([*IDEAL, "cube.hbm.refresh=all-bank"], "cube.hbm.refresh: timing: ideal has no banks to refresh"),
        ([*IDEAL, "cube.hbm.refresh=none"], "cube.hbm.refresh: timing: ideal has no banks to refresh"),
        (["cube.hbm.refresh=per-bank"], "must be one of: all-bank, spread, none"),
        (["cube.hbm.access_bytes=64"], "cube.hbm.access_bytes: only timing: ideal uses this"),
        (["cube.components.hbm_ctrl.attrs.efficiency=0.8"], "cube.components.hbm_ctrl.attrs.efficiency: only timing"),
        ([*PLAIN, "cube.hbm.mapping=MOP4CLXOR"], "cube.hbm.burst_bytes: only mapping: interleave uses this"),
        (["cube.hbm.num_pcs=16"], "16 pseudo-channels of 25.6 GB/s are 409.6 GB/s, but"),
        (["cube.hbm.burst_bytes=48"], "cube.hbm.burst_bytes: found 48, must be a multiple of 32"),
        (["cube.hbm.timing=hbm33"], "did you mean 'hbm3'? must be one of: ideal, hbm2, hbm3"),
        (
            ["cube.hbm.timing={groups: 3}"],
            "cube.hbm.timing: group has 3 values, must be a power of two where something",
        ),
        (["cube.hbm.timing={groups: 3}", "cube.hbm.mapping=hash"], "cube.hbm.mapping: group has 3 values; only pc"),
        (["cube.hbm.timing={rcns: 50}"], "timing.rcns: unknown key 'rcns'; did you mean 'rc_ns'? allowed here: stacks"),
        (["cube.hbm.timing={column_bus_ns: 0.7}"], "column_bus_ns is 0.7, must be at most 0.625: 2 for each burst"),
        (["cube.hbm.timing={refi_ns: 400}"], "refresh takes 104% of the time"),
        (["cube.hbm.timing={stacks: 32, groups: 32, banks: 4}"], "8 x 32 x 32 x 4 banks a slice, must be"),
        (["cube.hbm.timing={row_bytes: 1000}"], "row_bytes is 1000, must be a multiple of 32"),
        (["cube.hbm.mapping=[{field: pc}, {field: row}]"], "must have pc, stack, group and bank once each"),
        ([mapping("column", "column, values: 5")], "the columns must make up the 32 bursts of a row"),
        (["cube.hbm.num_pcs=6", mapping("pc", "pc, fold: row")], "mapping[0].fold: pc has 6 values"),
        ([mapping("pc", "pc, fold: pc")], "cube.hbm.mapping: pc is folded into itself"),
        (
            [mapping("pc", "pc, fold: bank").replace("bank, fold: row", "bank, fold: pc")],
            "pc, bank are folded into each",
        ),
        (
            [mapping("pc", "pc, fold: above").replace("group}", "group, fold: pc}")],
            "pc, group are folded into each other",
        ),
    ],
)
def test_what_is_wrong_is_told(changes, message):
    with pytest.raises(ConfigError, match="cube") as refused:
        compiled(*changes)
    assert message in str(refused.value)


def work(timing: HbmTiming, refresh: Refresh) -> Iterator[object]:
    """What some reads and writes come to, one by one."""
    memory = BankedMemory(Histories(timing, 4, interleave(8, xor=True), 64, refresh), 2048)
    accesses = [
        *((k << 24, 4096, k % 3 == 1) for k in range(12)),
        *((k << 20, 2048, k % 5 == 0) for k in range(40)),
        *((k << 16, 64, False) for k in range(200)),
        *((k << 18, 256, k % 2 == 0) for k in range(100)),
        *((k * 4736, 128, False) for k in range(200)),
        *((0, 256, False) for _ in range(50)),
        # One group of both stacks, in turn.
        *(((k % 2) * 8192 + 1024 * (k // 2 % 8), 256, False) for k in range(400)),
    ]
    now = 0
    for pa, nbytes, write in accesses:
        grant = memory.serve(Access(pa, nbytes), write, 0, nbytes, now)
        now = grant.over_ps
        yield grant, memory.done


@cache
def usual_work(refresh: Refresh) -> list[object]:
    return list(work(HBM3, refresh))


@pytest.mark.parametrize("refresh", ["all-bank", "spread"])
@pytest.mark.parametrize("name", [name for name in HbmTiming.model_fields if name != "cl_ns"])
def test_every_timing_matters(name, refresh):
    others = {"high": 0.5, "low": 0.5, "drain": 0.3, "ccd_l_wr_ns": 2 * HBM3.ccd_l_ns, "column_bus_ns": 0.625}
    other = others.get(name) or getattr(HBM3, name) * 2
    found = work(HBM3.model_copy(update={name: other}), refresh)
    assert any(one != usual for one, usual in zip(found, usual_work(refresh), strict=True))


def test_a_key_of_a_timing_that_is_null_is_no_part_of_the_digest():
    """So machines are what they were before the key came, and their sweeps go on."""
    fifty, null, same = (
        compiled(f"cube.hbm.timing={{rc_ns: 50{more}}}")
        for more in ("", ", ccd_l_wr_ns: null, column_bus_ns: null", ", ccd_l_wr_ns: 2.5, column_bus_ns: 0")
    )
    assert resolve_topology("default").digest.startswith("396202ab317f")
    assert fifty.digest == null.digest
    assert fifty.digest.startswith("fdc9efd4abff")
    assert same.digest != fifty.digest
    assert not {"ccd_l_wr_ns", "column_bus_ns"} & set(fifty.configuration["cube"]["hbm"]["timing"])
    timing = same.configuration["cube"]["hbm"]["timing"]
    assert (timing["ccd_l_wr_ns"], timing["column_bus_ns"]) == (2.5, 0.0)


def test_writes_of_a_group_are_as_far_apart_as_reads_unless_told():
    assert HBM3.write_ccd_l_ns == HBM3.ccd_l_ns
    same = HBM3.model_copy(update={"ccd_l_wr_ns": HBM3.ccd_l_ns})
    assert list(work(same, "none")) == usual_work("none")


def test_column_commands_have_a_bus_of_their_own_by_default():
    assert HBM3.column_bus_ns is None
    free = HBM3.model_copy(update={"column_bus_ns": 0.0})
    assert list(work(free, "none")) == usual_work("none")


def test_modes_of_refresh_differ():
    modes: tuple[Refresh, ...] = ("all-bank", "spread", "none")
    one, other, none = map(usual_work, modes)
    assert one != other
    assert none not in (one, other)


@pytest.mark.parametrize(
    ("changes", "access_ns"),
    [
        ([], 15),
        (["cube.hbm.timing=hbm2"], 15),
        (["cube.hbm.timing={cl_ns: 20}"], 20),
        (["cube.hbm.timing=ideal"], 15),
        ([f"{ACCESS}=2"], 14.5),
        (["cube.hbm.timing=hbm2", f"{ACCESS}=0"], 14),
        (["cube.hbm.timing=ideal", f"{ACCESS}=2"], 2),
    ],
)
def test_an_access_takes_the_controller_and_cl_in_all_fifteen_unless_told(changes, access_ns):
    assert compiled(*changes).spec.cube.hbm_access_ns == access_ns


def test_no_refresh_leaves_the_peak():
    assert compiled("cube.hbm.refresh=none").spec.cube.slice_bw_gbs == pytest.approx(204.8)
    shares = [compiled(f"cube.hbm.refresh={mode}").spec.cube.slice_bw_gbs for mode in ("all-bank", "spread", "null")]
    assert shares == [pytest.approx(204.8 * (1 - HBM3.refresh_share))] * 3


def test_a_sweep_may_set_spread_on_every_machine():
    assert hbm("cube.hbm.timing=ideal", "cube.hbm.refresh=spread").banks is None


@pytest.mark.parametrize("pcs", [1, 2, 3, 8])
def test_writes_are_kept_back_channel_by_channel(pcs):
    cube = compiled(f"cube.hbm.timing={{pcs_per_channel: {pcs}}}").spec.cube
    assert cube.write_queue_bytes == -(-8 // pcs) * 64 * 32
