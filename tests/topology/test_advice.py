"""What the loader warns of: mappings that pile the rows of a tile on few channels, queues that are full too early."""

from __future__ import annotations

import re
import warnings

import pytest

from compiled import compiled
from kernbench.topology.builder import STRIDES, channels_of_rows, resolve_topology

MANY = "cube.hbm.num_pcs="
FIELDS = (
    "cube.hbm.mapping=[{field: column, values: 8}, {field: pc}, {field: group}, {field: stack}, {field: bank}, "
    "{field: column}, {field: row}]"
)
FAST_LINK = "cube.links.xbar_to_hbm.bw_gbs=1000"


def warned(*changes: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolve_topology("default", changes)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["cube.hbm.mapping=MOP4CLXOR"], "cube.hbm.mapping: rows 1 KiB apart (128 B of each) use 4 of 8"),
        (["cube.hbm.mapping=RoBaRaCoCh"], "cube.hbm.mapping: rows 8 KiB apart (128 B of each) use 1 of 8"),
        ([FIELDS], "cube.hbm.mapping: rows 2 KiB apart (128 B of each) use 1 of 8"),
        (["cube.hbm.channel_hash=mod"], "cube.hbm.channel_hash: rows 2 KiB apart (128 B of each) use 1 of 8"),
        (["cube.hbm.channel_hash=mod", "cube.hbm.timing=ideal"], "cube.hbm.channel_hash: rows 2 KiB apart"),
        (["cube.hbm.channel_hash=mod", "cube.hbm.mapping=hash"], "cube.hbm.channel_hash: rows 2 KiB apart"),
        (["cube.hbm.channel_hash=mod", f"{MANY}6"], "with a power of two as the number of channels, channel_hash: xor"),
        (["cube.hbm.mapping=MOP4CLXOR", f"{MANY}16", FAST_LINK], "use 4 of 16"),
        (["cube.hbm.queue_entries=16"], "cube.hbm.queue_entries: a channel queues 16 bursts of 32 B; if all wait for"),
        (["cube.hbm.queue_entries=16", "cube.hbm.timing=hbm2"], "it moves 18.3 GB/s of 28.6; 26 are enough"),
        (["cube.hbm.timing=hbm3e", FAST_LINK], "cube.hbm.queue_entries: a channel queues 64 bursts"),
    ],
)
def test_what_is_warned_of(changes, message):
    (found,) = warned(*changes)
    assert message in found


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["cube.hbm.mapping=hash"],
        ["cube.hbm.timing=ideal"],
        ["cube.hbm.mapping=MOP4CLXOR", f"{MANY}2"],
        ["cube.hbm.mapping=MOP4CLXOR", f"{MANY}4"],
        ["cube.hbm.channel_hash=mod", f"{MANY}1"],
        *(["cube.hbm.burst_bytes=1KiB", f"{MANY}{n}", FAST_LINK] for n in (2, 16, 32)),
        *([f"cube.hbm.timing={name}"] for name in ("hbm2", "hbm4", "lpddr5", "lpddr5x", "ddr5")),
        ["cube.hbm.queue_entries=32", "cube.hbm.timing=hbm2"],
        ["cube.hbm.refresh=none"],
    ],
    ids=" ".join,
)
def test_what_is_not(changes):
    assert warned(*changes) == []


def test_the_warning_stands_at_the_key():
    (found,) = warned("cube.hbm.queue_entries=16")
    assert found.startswith("--set cube.hbm.queue_entries=16: cube.hbm.queue_entries: ")


@pytest.mark.parametrize("changes", [[], ["cube.hbm.timing=hbm2"], ["cube.hbm.timing={pcs_per_channel: 4}"]])
def test_as_many_entries_as_are_enough_are_enough(changes):
    (found,) = warned(*changes, "cube.hbm.queue_entries=4")
    enough = int(re.search(r"(\d+) are enough", found)[1])
    assert warned(*changes, f"cube.hbm.queue_entries={enough}") == []
    assert warned(*changes, f"cube.hbm.queue_entries={enough - 1}") != []


def test_rows_are_counted_by_the_channels_they_use():
    mod = compiled("cube.hbm.channel_hash=mod").spec.cube.hbm
    # 256 B lie on a channel: 512 B apart are every other one, from 2 KiB on it is always the same.
    assert [channels_of_rows(mod, stride)[0] for stride in STRIDES] == [4, 2, 1, 1, 1, 1, 1, 1]
    assert {channels_of_rows(compiled().spec.cube.hbm, stride) for stride in STRIDES} == {(8, 8)}
