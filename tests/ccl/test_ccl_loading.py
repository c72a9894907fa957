"""From names to functions: built-in ones, the user's own, and what is said about those that do not fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from ccl_support import by_source, config, machine, sips

from kernbench.ccl.install import edges_of, layout_of
from kernbench.ccl.loading import algorithms, ccl_config_of, load_algorithm
from kernbench.common.config import parse_document
from kernbench.common.errors import ConfigError, InputError, UnknownNameError
from kernbench.triton_emu.schedules import ScheduledKernel

MODULE = '''
"""What it is in a line.

And more.
"""

def kernel(t_ptr, n_elem, tl):
    pass

def kernel_args(*, n_elem, world_size, **config):
    return n_elem, world_size, config

def pairs(topology, config):
    return [((0, 0, 0), "E", (0, 0, 1))]

def two(topology, rank):
    return [(0, 0), (0, 1)]
'''


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module where the user runs, under a name that no other test imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def write_module(more: str = "", text: str = MODULE, name: str = "mine_ccl") -> Any:
        (tmp_path / f"{name}.py").write_text(text + more)
        return config(module=f"{name}.py")

    return write_module


def test_a_file_of_ones_own_is_an_algorithm(write: Any) -> None:
    loaded = load_algorithm(write())
    assert loaded.neighbors is None
    assert loaded.topology_fn.__name__ == "ring_1d"
    assert loaded.mapper_fn.__name__ == "leader_only"
    assert loaded.validator_fn.__name__ == "single_shard_per_rank"


def test_dotted_paths_lead_to_functions_beside_where_one_runs(write: Any) -> None:
    write()
    mine = config(module="mine_ccl.py", topology="mine_ccl.pairs", mapper="mine_ccl.two")
    loaded = load_algorithm(mine)
    assert edges_of(loaded, machine().spec) == [((0, 0, 0), "E", (0, 0, 1))]
    assert layout_of(loaded, machine().spec).ranks == (((0, 0, 0), (0, 0, 1)), ((1, 0, 0), (1, 0, 1)))


def test_a_module_that_ships_is_found_by_name_and_by_path() -> None:
    by_name = load_algorithm(config(module="ring_allreduce"))
    by_path = load_algorithm(config(module="kernbench.ccl.algorithms.ring_allreduce"))
    assert by_name.kernel is by_path.kernel


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no kernel; it has no kernel_args; an algorithm has schedule"),
        ("kernel = 3\ndef kernel_args(**c): ...", "its kernel is not a function"),
        ("def kernel(t): ...\ndef kernel_args(**c): ...", r"its kernel\(t\) does not take tl"),
        ("def kernel(tl): ...\ndef kernel_args(n_elem): ...", r"does not take world_size, \*\*config"),
        ("def kernel(tl): ...\ndef kernel_args(**c): ...\nneighbors = {}", "its neighbors is not a function"),
    ],
)
def test_a_module_that_is_no_algorithm_is_told_what_it_lacks(write: Any, text: str, says: str) -> None:
    with pytest.raises(InputError, match=rf"algorithm 'test': module 'mine_ccl.py' \(.*mine_ccl.py\): .*{says}"):
        load_algorithm(write(text=text))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"module": "ring_alreduce"}, r"unknown algorithm module 'ring_alreduce'; .* did you mean 'ring_allreduce'\?"),
        ({"module": "nowhere.at_all"}, "algorithm 'test': module 'nowhere.at_all': there is no module 'nowhere'"),
        ({"module": "nowhere.py"}, "algorithm 'test': module 'nowhere.py': no such file"),
        ({"module": "broken.py"}, "module 'broken.py': line 2: ZeroDivisionError"),
        ({"module": "syntax.py"}, "module 'syntax.py': line 1: SyntaxError"),
        ({"topology": "mine_ccl.nothing"}, "topology 'mine_ccl.nothing': module 'mine_ccl' .* has no 'nothing'"),
        ({"topology": "mine_ccl.__name__"}, "topology 'mine_ccl.__name__' is not a function"),
        ({"topology": "ring"}, "unknown topology 'ring'; there are: ring_1d,"),
        ({"mapper": "all"}, "unknown mapper 'all'; there are: leader_only"),
        ({"validator": "any_shard"}, "unknown validator 'any_shard'; there are: single_shard_per_rank"),
    ],
)
def test_a_name_that_leads_nowhere(write: Any, changes: dict[str, str], says: str) -> None:
    write()
    write(name="broken", text="\n1 / 0\n")
    write(name="syntax", text="def (\n")
    with pytest.raises((InputError, UnknownNameError), match=says):
        load_algorithm(config(**{"module": "mine_ccl.py", **changes}))


def test_arguments_of_a_kernel_come_from_the_machine_and_the_file(write: Any) -> None:
    write()
    mine = config(module="mine_ccl.py", passthrough=(("kernel_a", 7), ("root_cube", 3)), n_slots=2)
    with pytest.raises(ConfigError, match=r"does not know 'kernel_a'; it knows: none; .*\n.*does not know 'root_cube'"):
        load_algorithm(mine)
    write('config_keys = ("kernel_a", "root_cube")\n')
    n_elem, world_size, got = load_algorithm(mine).args_for(machine().spec, n_elem=5, sip_rank=1, dtype="f16")
    assert (n_elem, world_size) == (5, 2)
    assert (got.pop("scratch_bytes"), got.pop("load_bytes")) == (12 << 20, 5376)  # 21 ns at 256 GB/s
    assert len(got.pop("hop_bytes")) == 3
    assert got == {
        "cube_w": 4, "cube_h": 4, "pes_per_cube": 8, "cubes_per_sip": 16, "num_sips": 2, "sip_rank": 1,
        "sip_topology": "ring_1d", "sip_w": 2, "sip_h": 1, "n_slots": 2, "slot_size": 4096, "buffer_kind": "tcm",
        "kernel_a": 7, "root_cube": 3, "dtype": "f16", "ranks_are_sips": True,
    }  # fmt: skip


def test_a_module_may_have_a_schedule_and_no_kernel(tmp_path: Path, write: Any) -> None:
    text = "def schedule(*, rank, world_size, n_elem, dtype='f32', kernel_gain=1):\n    return []\n"
    (tmp_path / "planned.py").write_text(text)
    loaded = load_algorithm(config(module=str(tmp_path / "planned.py"), passthrough=(("kernel_gain", 3),)))
    assert isinstance(loaded.kernel, ScheduledKernel)
    assert loaded.args_for(machine().spec, n_elem=5, dtype="f16")[:3] == (5, 2, "f16")
    assert 3 in loaded.args_for(machine().spec, n_elem=5)


def test_algorithms_are_listed_with_their_first_line(write: Any) -> None:
    write()
    text = "algorithms:\n  b: { module: mine_ccl.py, topology: none }\n  a: { module: barrier, topology: none }\n"
    (first, second) = algorithms(ccl_config_of(parse_document(text, "ccl.yaml")))
    assert first == ("b", "What it is in a line.")
    assert second[0] == "a"


def test_neighbors_change_what_the_topology_says(write: Any) -> None:
    mine = write("def neighbors(rank, world_size, base):\n    return {**base, 'E': (rank + 2) % world_size}\n")
    edges = by_source(edges_of(load_algorithm(mine), sips(4)))
    assert edges[1, 0, 0] == {"W": (0, 0, 0), "E": (3, 0, 0)}


def test_neighbors_leave_out_and_add_on_every_pe_of_a_rank(write: Any) -> None:
    write("def neighbors(rank, world_size, base):\n    return {'up': rank - 1} if rank else {}\n")
    edges = by_source(edges_of(load_algorithm(config(module="mine_ccl.py", mapper="pe0_of_every_cube")), sips(3)))
    assert edges == {(sip, cube, 0): {"up": (sip - 1, cube, 0)} for sip in (1, 2) for cube in (0, 1)}


def test_neighbors_leave_edges_inside_a_rank_alone(write: Any) -> None:
    write("def neighbors(rank, world_size, base):\n    assert set(base) <= {'global_E', 'global_W'}\n    return {}\n")
    mine = config(module="mine_ccl.py", topology="intercube", mapper="pe0_of_every_cube")
    assert {direction for _, direction, _ in edges_of(load_algorithm(mine), sips(3))} == {"E", "W"}


@pytest.mark.parametrize(
    ("answer", "says"), [("{'E': 4}", "returned 'E': 4; ranks are 0..3"), ("[1]", "not a mapping direction -> rank")]
)
def test_neighbors_that_do_not_exist(write: Any, answer: str, says: str) -> None:
    mine = write(f"def neighbors(rank, world_size, base):\n    return {answer}\n")
    with pytest.raises(InputError, match=rf"algorithm 'test': neighbors\(0, 4, …\) .*{says}"):
        edges_of(load_algorithm(mine), sips(4))


@pytest.mark.parametrize("entry", ["(0, 0, 0)", "((0, 0), 'E', (0, 0, 1))", "((0, 0, 0), 3, (0, 0, 1))", "7", "None"])
def test_a_topology_that_returns_something_else(write: Any, entry: str) -> None:
    write(f"def odd(topology, config):\n    return [{entry}]\n")
    with pytest.raises(InputError, match=r"topology 'mine_ccl.odd': returned .*; every entry has the form"):
        edges_of(load_algorithm(config(module="mine_ccl.py", topology="mine_ccl.odd")), sips(2))
