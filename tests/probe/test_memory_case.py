"""The case ``memory``: how close it is to the cycle-accurate reference, and that its figures make sense."""

from __future__ import annotations

import pytest

from compiled import compiled
from kernbench.cli.main import main
from kernbench.cli.probe_memory import draw_memory, memory_document
from kernbench.probe.memory_case import (
    PATTERNS,
    REQUESTERS,
    PatternRow,
    SliceUnderTest,
    accesses,
    mean_latency_ns,
    probe_slice,
    saturate,
    slices_of,
)

BURSTS = 1000


@pytest.fixture(scope="module")
def channels() -> tuple[SliceUnderTest, ...]:
    return slices_of(compiled("cube.hbm.num_pcs=2").spec.cube.hbm)


@pytest.fixture(scope="module")
def rows(channels: tuple[SliceUnderTest, ...]) -> dict[str, list[PatternRow]]:
    return {each.mapping: [saturate(each, pattern, 1, 4 * BURSTS) for pattern in PATTERNS] for each in channels}


def test_most_patterns_are_close_to_the_reference(rows):
    errors = {mapping: [abs(row.error) for row in found if row.error is not None] for mapping, found in rows.items()}
    every = [error for found in errors.values() for error in found]
    assert len(every) == 44
    assert sum(error <= 10 for error in errors["MOP4CLXOR"]) >= 20
    assert sum(error <= 10 for error in every) >= 40
    assert sum(every) / 44 <= 4
    assert max(every) <= 13


def test_row_hits_are_close_to_the_reference(rows):
    off = [abs(row.found.row_hit_pct - row.reference.row_hit_pct) for row in rows["RoBaRaCoCh"]]
    assert max(off) <= 10


@pytest.mark.parametrize("pattern", ["seq", "random_64B", "random_1KB"])
@pytest.mark.parametrize("requesters", REQUESTERS[1:])
def test_more_requesters_get_no_more_than_the_peak(channels, pattern, requesters):
    found = saturate(channels[0], pattern, requesters, BURSTS).found
    assert 0 < found.efficiency_pct <= 100


@pytest.mark.parametrize("pattern", ["seq", "random_64B", "random_1KB"])
def test_latency_rises_with_load(channels, pattern):
    at_most = saturate(channels[0], pattern, 1, BURSTS).gbs
    found = [mean_latency_ns(channels[0], pattern, load * at_most, BURSTS) for load in (0.1, 0.5, 0.8, 0.95)]
    assert found == sorted(found)
    assert found[1] < 2.5 * found[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_stay_in_their_room(pattern):
    room = 1 << 20
    source = accesses(pattern, room, 4096, 0)
    for _ in range(5000):
        access, _ = next(source)
        assert access.pa >= 0
        assert access.pa + access.nbytes <= room


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


def test_reports_are_told_and_drawn(channels, tmp_path):
    reports = [probe_slice(each, ("seq", "random_64B"), 200) for each in channels]
    document = memory_document(reports)
    assert [each["mapping"] for each in document] == ["interleave", "MOP4CLXOR", "RoBaRaCoCh"]
    first = document[1]["rows"][0]
    assert (first["pattern"], first["requesters"], first["reference"]["efficiency_pct"]) == ("seq", 1, 88.33)
    picture = tmp_path / "memory.svg"
    draw_memory(reports, str(picture))
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "memory", "--picture", "m.gif"], "must end in one of .png, .svg, .pdf"),
        (["--case", "pe-sram", "--picture", "m.png"], "give --case memory too"),
        (["--case", "memry"], "pe-all-local, memory"),
    ],
)
def test_slips_are_told(arguments, message, capsys):
    assert main(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err
