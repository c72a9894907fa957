"""The case ``memory``: how close it is to the cycle-accurate reference, and that its figures make sense."""

from __future__ import annotations

import io
from itertools import islice

import numpy as np
import pytest
from rich.console import Console

from compiled import compiled
from covering import sample
from kernbench.cli.main import main
from kernbench.cli.probe_output import draw_memory, print_memory
from kernbench.common.errors import InputError
from kernbench.library.probes import memory_document
from kernbench.probe.memory_case import (
    PATTERNS,
    REQUESTERS,
    PatternRow,
    SliceUnderTest,
    accesses,
    latency,
    probe_slice,
    saturate,
    slices_of,
)
from kernbench.topology.hbm_places import BurstPlaces

BURSTS = 1000
CHANNEL = ("cube.hbm.num_pcs=2", "cube.hbm.refresh=all-bank")


@pytest.fixture(scope="module")
def channels() -> tuple[SliceUnderTest, ...]:
    return slices_of(compiled(*CHANNEL).spec.cube.hbm)


@pytest.fixture(scope="module")
def rows(channels: tuple[SliceUnderTest, ...]) -> list[PatternRow]:
    """All that the reference has figures for."""
    made = [
        saturate(each, pattern, 1, 4 * BURSTS) for each in channels for pattern in PATTERNS if _is_known(each, pattern)
    ]
    return [row for row in made if row.reference is not None]


ONLY_INTERLEAVE = {
    *("stride_3072B_512B", "random_128B", "random_256B_6733", "one_group_256B"),
    *("streams_3_256B_16MB", "streams_4_1KB_16781568B_2write"),
}


def _is_known(each: SliceUnderTest, pattern: str) -> bool:
    return (each.mapping == "interleave") == (pattern in ONLY_INTERLEAVE)


def test_most_patterns_are_close_to_the_reference(rows):
    errors = [abs(row.error) for row in rows]
    assert len(errors) == 2 * 22 + 6
    assert sum(error <= 10 for error in errors) >= 48
    assert sum(errors) / 50 <= 3
    assert max(errors) <= 17


def test_the_packaged_mapping_is_close_to_the_reference(rows):
    own = [row for row in rows if row.pattern in ONLY_INTERLEAVE]
    assert len(own) == 6
    assert max(abs(row.error) for row in own) <= 10


def test_row_hits_are_close_to_the_reference(rows):
    off = [abs(row.figures.row_hit_pct - row.reference.row_hit_pct) for row in rows]
    assert sum(off) / 50 <= 3
    assert max(off) <= 13


@pytest.mark.slow
def test_latency_under_open_load_is_close_to_the_reference(channels):
    report = probe_slice(channels[1], ("seq", "random_64B", "random_256B"), 200)
    assert len(report.compared) == 5
    off = [abs(each.error_pct) for each in report.compared]
    assert sum(off) / 5 <= 15
    assert max(off) <= 25
    assert all(0.75 < each.figures.p99_ns / each.reference.p99_ns < 1.25 for each in report.compared)
    told = io.StringIO()
    print_memory(Console(file=told, width=200), compiled(*CHANNEL), [report])
    assert "Latency in ns beside the reference" in told.getvalue()
    assert all(f"{each.reference.p99_ns:.1f}" in told.getvalue() for each in report.compared)
    (document,) = memory_document([report])
    assert document["latency_compared"][0]["reference"] == {"mean_ns": 77.75, "p50_ns": 56.9, "p99_ns": 450.6}


@pytest.mark.parametrize("change", ["cube.hbm.queue_entries=64", "cube.hbm.refresh=spread"])
def test_a_channel_of_hbm3_is_compared(change):
    assert all(each.is_compared for each in slices_of(compiled(*CHANNEL, change).spec.cube.hbm))


@pytest.mark.parametrize(
    "change",
    ["cube.hbm.queue_entries=128", "cube.hbm.timing=hbm2", "cube.hbm.num_pcs=8", "cube.hbm.refresh=none"],
)
def test_another_slice_is_not_compared(change):
    for each in slices_of(compiled(*CHANNEL, change).spec.cube.hbm):
        assert not each.is_compared
        assert saturate(each, "random_64B", 1, 10).reference is None
        assert saturate(each, "random_128B", 1, 10).reference is None


def test_an_interleave_of_ones_choice_is_not_compared():
    each, mop, _ = slices_of(compiled(*CHANNEL, "cube.hbm.burst_bytes=512").spec.cube.hbm)
    assert (each.is_compared, mop.is_compared) == (False, True)
    assert saturate(each, "random_128B", 1, 10).reference is None


@pytest.mark.parametrize(("mode", "least", "most"), [("all-bank", 84, 89.3), ("spread", 84, 89.3), ("none", 94, 100)])
def test_a_stream_loses_what_refresh_takes(mode, least, most):
    """That is 10.7 %. A thousand bursts are over before the first refresh of all banks: it is counted all the same."""
    each, *_ = slices_of(compiled("cube.hbm.num_pcs=2", f"cube.hbm.refresh={mode}").spec.cube.hbm)
    assert each.refresh == mode
    for bursts in (BURSTS, 8 * BURSTS):
        assert least <= saturate(each, "seq", 1, bursts).figures.efficiency_pct <= most


@pytest.mark.parametrize("pattern", ["seq", "random_64B", "random_1KB"])
@pytest.mark.parametrize("requesters", REQUESTERS[1:])
def test_more_requesters_get_no_more_than_the_peak(channels, pattern, requesters):
    found = saturate(channels[0], pattern, requesters, BURSTS).figures
    assert 0 < found.efficiency_pct <= 100


@pytest.mark.parametrize("pattern", sample(["seq", "random_64B", "random_1KB"], "random_64B"))
def test_latency_rises_with_load(channels, pattern):
    at_most = saturate(channels[0], pattern, 1, BURSTS).gbs
    found = [latency(channels[0], pattern, load * at_most, 4 * BURSTS) for load in (0.1, 0.6, 0.95)]
    means = [each.mean_ns for each in found]
    assert means == sorted(means)
    assert means[1] < 2.5 * means[0]
    # CL, and at least a burst; one in a hundred meets a refresh.
    assert all(each.p50_ns >= channels[0].banks.cl_ns + 1.25 for each in found)
    assert all(each.p99_ns > 300 for each in found)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_stay_in_their_room(pattern):
    room = 1 << 20
    source = accesses(pattern, room, 4096, 0)
    for _ in range(5000):
        access, _ = next(source)
        assert access.pa >= 0
        assert access.pa + access.nbytes <= room


def test_half_and_a_third_of_the_accesses_write():
    for pattern, share in (("random_64B_5050", 0.5), ("random_256B_6733", 0.33), ("random_64B", 0.0)):
        steps = list(islice(accesses(pattern, 1 << 20, 0, 3), 4000))
        assert sum(write for _, write in steps) / 4000 == pytest.approx(share, abs=0.03)


def test_streams_take_turns_and_the_last_ones_write():
    steps = list(islice(accesses("streams_4_1KB_16781568B_2write", 512 << 20, 0, 1), 8))
    begins = [stream * 16_781_568 for stream in range(4)]
    assert [access.pa for access, _ in steps] == [*begins, *(begin + 1024 for begin in begins)]
    assert [write for _, write in steps] == [False, False, True, True] * 2


def test_one_group_is_one_group(channels):
    for each in channels:
        pas = [access.pa for access, _ in islice(each.steps("one_group_256B"), 400)]
        places = BurstPlaces(each.banks, each.num_pcs, each.fields).of(np.array(pas) // 32)
        assert set(places["group"].tolist()) == {1}
        assert len(set(places["stack"].tolist())) == 2


NO_GROUP_1 = "[{field: pc}, {field: group}, {field: column}, {field: stack}, {field: bank}, {field: row}]"
"""Accesses of 256 B begin at every eighth burst: on PC 0, in group 0"""


def test_a_pattern_that_a_mapping_cannot_have_is_left_out_in_words():
    machine = compiled(
        "cube.hbm.num_pcs=2",
        "cube.hbm.timing=hbm2",
        f"cube.hbm.mapping={NO_GROUP_1}",
        "cube.hbm.bytes_per_slice=1MiB",
    )
    (slice_,) = slices_of(machine.spec.cube.hbm)
    assert list(slice_.steps("one_group_256B")) == []
    report = probe_slice(slice_, ("stride_128B_64B", "one_group_256B"), 200)
    assert {row.pattern for row in report.rows} == {"stride_128B_64B"}
    why = "with this mapping none of its accesses begins in bank group 1"
    (document,) = memory_document([report])
    assert document["absent"] == [{"pattern": "one_group_256B", "requesters": 1, "why": why}]
    printed = io.StringIO()
    print_memory(Console(file=printed, width=200), machine, [report])
    assert printed.getvalue().count("one_group_256B") == 1
    assert f"no one_group_256B: {why}\n" in printed.getvalue()
    with pytest.raises(InputError, match=f"one_group_256B: {why}"):
        saturate(slice_, "one_group_256B", 1, 200)


@pytest.mark.parametrize("room", [32, 256, 2048, 64 << 10])
def test_patterns_without_room_have_no_accesses(room, tmp_path):
    """All others go on."""
    slice_, *_ = slices_of(compiled("cube.hbm.num_pcs=2", f"cube.hbm.bytes_per_slice={room}").spec.cube.hbm)
    runs = [(pattern, requesters) for pattern in PATTERNS for requesters in (1, max(REQUESTERS))]
    reasons = {run: slice_.why_absent(*run) for run in runs}
    for (pattern, requesters), why in reasons.items():
        n_steps = min(len(list(islice(slice_.steps(pattern, number), 10))) for number in range(requesters))
        assert n_steps == (0 if why else 10)
    absent = {pattern for (pattern, requesters), why in reasons.items() if why and requesters == 1}
    assert ("random_32B" in absent, "random_4KB" in absent) == (False, room < 4096)
    if room == 256:
        why = "it has no room in 256 B of memory"
        assert reasons["random_4KB", 1] == why
        assert reasons["random_64B", 8] == f"{why}, of which each of 8 requesters has 1/8"
        report = probe_slice(slice_, ("random_1KB",), 20)
        assert (report.rows, len(report.absent)) == ((), len(REQUESTERS))
        draw_memory([report], str(tmp_path / "memory.png"))


def test_a_machine_with_banks_has_its_own_mapping():
    machine = compiled(
        "cube.hbm.timing=hbm2",
        "cube.hbm.quantum_bytes=4096",
    )
    found, *compared = slices_of(machine.spec.cube.hbm)
    assert [each.mapping for each in compared] == ["MOP4CLXOR", "RoBaRaCoCh"]
    assert (found.timing, found.mapping, found.peak_gbs, found.quantum) == ("hbm2", "interleave", 128.0, 4096)
    assert saturate(found, "seq", 1, BURSTS).reference is None


def test_a_mapping_of_ones_choice_is_alone():
    machine = compiled("cube.hbm.mapping=MOP4CLXOR", "cube.hbm.num_pcs=2")
    (found,) = slices_of(machine.spec.cube.hbm)
    assert (found.mapping, found.num_pcs) == ("MOP4CLXOR", 2)


@pytest.mark.parametrize(("name", "title"), [("hbm3e", "hbm3e (assumed)"), ("ddr5", "ddr5")])
def test_reports_say_what_is_assumed(name, title):
    machine = compiled(f"cube.hbm.timing={name}", "cube.hbm.num_pcs=2", "cube.hbm.queue_entries=128")
    report = probe_slice(slices_of(machine.spec.cube.hbm)[0], ("seq",), 200)
    assert report.memory == title
    (document,) = memory_document([report])
    assert (document["memory"], document["assumed"]) == (name, name == "hbm3e")


def test_a_hashed_machine_is_compared_too():
    found = slices_of(compiled("cube.hbm.mapping=hash").spec.cube.hbm)
    assert [each.mapping for each in found] == ["hash", "MOP4CLXOR", "RoBaRaCoCh"]


def test_reports_are_told_and_drawn(channels, tmp_path, monkeypatch):
    monkeypatch.setattr("kernbench.probe.memory_case.LATENCY_BURSTS", 200)
    monkeypatch.setattr("kernbench.probe.memory_case.PERIODS", 0)
    reports = [probe_slice(each, ("seq", "random_64B"), 200) for each in channels]
    document = memory_document(reports)
    assert [each["mapping"] for each in document] == ["interleave", "MOP4CLXOR", "RoBaRaCoCh"]
    first = document[1]["rows"][0]
    assert (first["pattern"], first["requesters"], first["reference"]["efficiency_pct"]) == ("seq", 1, 88.33)
    assert [len(each["latency_compared"]) for each in document] == [0, 3, 0]
    picture = tmp_path / "memory.svg"
    draw_memory(reports, str(picture))
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    assert picture.read_text(encoding="utf-8").count("cycle-accurate reference") >= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "memory", "--picture", "m.gif"], "must end in one of .png, .svg, .pdf"),
        (["--case", "pe-sram", "--picture", "m.png"], "add --case memory"),
        (["--case", "memry"], "pe-all-local, memory"),
    ],
)
def test_slips_are_told(arguments, message, capsys):
    assert main(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err
