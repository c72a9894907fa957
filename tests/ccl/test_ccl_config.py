"""``ccl.yaml``: what it resolves to, and what is said about one that is wrong."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from kernbench.ccl.config import CclConfig, resolve_algorithm_config
from kernbench.ccl.loading import ccl_config_of, load_algorithm, load_ccl_config
from kernbench.ccl.topologies import TOPOLOGIES
from kernbench.common.config import parse_document
from kernbench.common.errors import ConfigError, InputError, UnknownNameError

MINIMAL = "algorithms:\n  mine: { module: my_pkg.mine, topology: ring_1d }\n"


def parsed(text: str) -> CclConfig:
    return ccl_config_of(parse_document(text, "ccl.yaml"))


def complaints(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parsed(text)
    return str(error.value).splitlines()


def test_the_packaged_file_has_the_algorithms_of_the_specification() -> None:
    cfg = load_ccl_config(Path(__file__).parents[2] / "ccl.yaml")
    assert set(cfg.names) >= {
        "ring_allreduce_tcm", "ring_allreduce_hbm", "ring_allreduce_sram", "ring_allreduce_rs_ag", "mesh_allreduce_4",
        "tree_allreduce_7", "hierarchical_allreduce", "intercube_allreduce", "sip_allreduce",
    }  # fmt: skip
    default = resolve_algorithm_config(cfg)
    assert default.name == "intercube_allreduce"
    assert (default.mapper, default.validator) == ("pe0_of_every_cube", "row_per_cube")
    assert default.passthrough == ()
    assert resolve_algorithm_config(cfg, "tree_allreduce_7").world_size == 7
    assert resolve_algorithm_config(cfg, "ring_allreduce_hbm").buffer_kind == "hbm"


def test_without_a_path_the_file_here_wins_over_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "intercube_allreduce" in load_ccl_config().names
    (tmp_path / "ccl.yaml").write_text(MINIMAL)
    assert load_ccl_config().names == ("mine",)


def test_what_no_file_says_has_the_documented_values() -> None:
    mine = resolve_algorithm_config(parsed(MINIMAL))
    assert (mine.name, mine.module, mine.topology) == ("mine", "my_pkg.mine", "ring_1d")
    assert (mine.mapper, mine.validator) == ("leader_only", "single_shard_per_rank")
    assert (mine.buffer_kind, mine.backpressure, mine.poll_ns) == ("tcm", "sleep", 50.0)
    assert (mine.n_slots, mine.slot_size, mine.ipcq_credit_size_bytes) == (4, 4096, 16)
    assert (mine.n_elem, mine.world_size, mine.passthrough) == (None, None, ())


def test_an_algorithm_goes_over_the_defaults() -> None:
    cfg = parsed(
        "defaults: { n_slots: 8, world_size: 3, topology: tree_binary, chunk_size: 1KiB, kernel_a: 1, kernel_b: 2 }\n"
        "algorithms:\n"
        "  a: { module: m.a, n_slots: 2, kernel_b: [x, 3], reduce_op: max }\n"
        "  b: { module: m.b, topology: none, world_size: 5, slot_size: 8KiB }\n"
    )
    a, b = cfg.algorithms
    assert (a.n_slots, a.world_size, a.topology, a.slot_size) == (2, 3, "tree_binary", 4096)
    assert a.passthrough == (("chunk_size", 1024), ("kernel_a", 1), ("kernel_b", ("x", 3)), ("reduce_op", "max"))
    assert (b.n_slots, b.world_size, b.topology, b.slot_size) == (8, 5, "none", 8192)
    assert dict(b.passthrough) == {"chunk_size": 1024, "kernel_a": 1, "kernel_b": 2}


def test_overrides_reach_any_key(tmp_path: Path) -> None:
    file = tmp_path / "ccl.yaml"
    file.write_text(MINIMAL)
    cfg = load_ccl_config(file, ["defaults.n_slots=2", "algorithms.mine.kernel_w=3"])
    assert (cfg.algorithms[0].n_slots, cfg.algorithms[0].passthrough) == (2, (("kernel_w", 3),))
    with pytest.raises(ConfigError, match=r"--set defaults.n_slot=2: defaults.n_slot: unknown key 'n_slot'"):
        load_ccl_config(file, ["defaults.n_slot=2"])


def test_every_problem_is_reported_at_once_with_its_line() -> None:
    found = complaints(
        "defaults:\n"
        "  algorithm: minne\n"
        "  n_slots: 0\n"
        "  buffer_kind: tmc\n"
        "algorithms:\n"
        "  mine:\n"
        "    module: ring_alreduce\n"
        "    topology: ring_2d\n"
        "    slots: 3\n"
        "    kernel_x: { a: 1 }\n"
        "  other: { topology: none, mapper: all_pe, poll_ns: 0 }\n"
    )
    where = [line.split(" ")[0] for line in found]
    assert where == [f"ccl.yaml:{at}:" for at in
                     ("2:14", "3:12", "4:16", "7:13", "8:15", "9:5", "10:15", "11:3", "11:36", "11:53")]  # fmt: skip
    text = "\n".join(found)
    for part in (
        "no algorithm 'minne'; did you mean 'mine'?",
        "n_slots: found 0, must be at least 1",
        "must be one of: tcm, hbm, sram",
        "unknown topology 'ring_2d'; did you mean 'ring_1d'?",
        "unknown key 'slots'",
        "kernel_x: found a mapping",
        "algorithms.other: missing key 'module'",
        "unknown mapper 'all_pe'; did you mean 'all_pes'?",
        "poll_ns: found 0, must be at least 0.001",
        "unknown module 'ring_alreduce'",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("slot_size: 32", "must be at least 64"),
        ("slot_size: 100", "must be a multiple of 16"),
        ("n_slots: 1.5", "must be a whole number"),
        ("n_slots: true", "must be a whole number"),
        ("world_size: 0", "must be at least 1"),
        ("ipcq_credit_size_bytes: 0", "must be at least 1"),
        ("poll_ns: .inf", "must be"),
        ("backpressure: spin", "must be one of: sleep, poll"),
        ("root_cube: -1", "must be at least 0"),
        ("reduce_op: prod", "must be one of: sum, max, min, avg"),
        ("reduce_op: [sum]", "must be one of: sum, max, min, avg"),
        ("chunk_size: 0", "must be at least 1"),
        ("strict: true", "unknown key 'strict'"),
        ("kernel_x: null", "found nothing, must be a number"),
        ("kernel_x: [1, [2]]", "or a list of those"),
        ("algorithm: mine", "unknown key 'algorithm'"),
    ],
)
def test_a_value_out_of_bounds_says_what_is_allowed(entry: str, says: str) -> None:
    (found,) = complaints(f"algorithms:\n  mine: {{ module: m.a, topology: none, {entry} }}\n")
    assert says in found
    assert found.startswith("ccl.yaml:2:")


@pytest.mark.parametrize(
    ("module", "key", "knows"),
    [
        ("ring_allreduce", "root_cube: 3", "reduce_op, chunk_size"),
        ("intercube_allreduce", "kernel_w: 2", "root_cube, reduce_op, chunk_size"),
        ("tree_allreduce", "kernel_gain: 2", "reduce_op, chunk_size"),
        ("mesh_allreduce", "kernel_width: 2", "kernel_w, kernel_h, reduce_op, chunk_size"),
        ("broadcast", "reduce_op: max", "chunk_size"),
        ("barrier", "chunk_size: 64", "none"),
    ],
)
def test_a_key_that_an_algorithm_does_not_know_is_an_error_where_it_stands(module: str, key: str, knows: str) -> None:
    name = key.partition(":")[0]
    (found,) = complaints(f"algorithms:\n  mine:\n    module: {module}\n    topology: none\n    {key}\n")
    assert found.startswith(f"ccl.yaml:5:5: algorithms.mine.{name}: algorithm 'mine' does not know '{name}'; ")
    assert found.endswith(f"it knows: {knows}")
    # Of the algorithm that is taken, defaults have to be known too.
    other = "  other: { module: intercube_allreduce, topology: none }\n"
    text = f"algorithms:\n  mine: {{ module: {module}, topology: none }}\n{other}"
    (found,) = complaints(f"defaults: {{ algorithm: mine, {key} }}\n{text}")
    assert found.startswith(f"ccl.yaml:1:30: defaults.{name}: algorithm 'mine' does not know")
    if name == "root_cube":
        reached = parsed(f"defaults: {{ algorithm: other, {key} }}\n{text}")
        assert [dict(each.passthrough) for each in reached.algorithms] == [{"root_cube": 3}] * 2
        with pytest.raises(ConfigError, match=r"ccl.yaml:1:\d+: defaults.root_cube: algorithm 'mine' does not know"):
            load_algorithm(reached.algorithms[0])


def test_a_topology_takes_its_own_keys() -> None:
    text = "algorithms:\n  mine: {{ module: ring_allreduce, topology: {}, kernel_w: 2, kernel_h: 1 }}\n"
    for name in ("torus_2d", "mesh_2d", "mesh_2d_no_wrap"):
        load_algorithm(parsed(text.format(name)).algorithms[0])
    assert "does not know 'kernel_w'" in complaints(text.format("ring_1d"))[0]


@pytest.mark.parametrize("where", ["algorithm", "defaults"])
def test_the_old_name_of_the_torus(where: str) -> None:
    own, shared = ("topology: mesh_2d", "") if where == "algorithm" else ("world_size: 4", "topology: mesh_2d")
    cfg = parsed(f"defaults: {{ {shared} }}\nalgorithms:\n  mine: {{ module: mesh_allreduce, {own} }}\n")
    assert cfg.algorithms[0].topology == "torus_2d"
    assert load_algorithm(cfg.algorithms[0]).topology_fn is TOPOLOGIES["torus_2d"]


def test_a_piece_of_a_shipped_algorithm_fits_a_slot() -> None:
    text = "algorithms:\n  mine: {{ module: {}, topology: ring_1d, chunk_size: 2KiB, slot_size: 1KiB }}\n"
    (found,) = complaints(text.format("ring_allreduce"))
    assert "chunk_size: found 2048; a message has to fit a slot (slot_size 1024)" in found
    assert parsed(text.format("my.own")).algorithms[0].slot_size == 1024
    (found,) = complaints(
        "defaults: { chunk_size: 8KiB }\n" + text.format("ring_allreduce").replace("chunk_size: 2KiB, ", "")
    )
    assert found.startswith("ccl.yaml:1:25: defaults.chunk_size: found 8192")


def test_strict_is_for_all_of_a_file() -> None:
    assert [each.strict for each in parsed(f"defaults: {{ strict: true }}\n{MINIMAL}").algorithms] == [True]
    assert [each.strict for each in parsed(MINIMAL).algorithms] == [False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("algorithms: {}\n", "must have at least 1 entry"),
        ("defaults: {}\n", "missing key 'algorithms'"),
        ("defaults: 3\nalgorithms: 4\n", "must be a mapping"),
        ("defaults: 3\nalgorithms: { a: { module: barrier, topology: none } }\n", "must be a mapping"),
        ("algorithms: [1]\n", "must be a mapping"),
        ("algorithms: { a: { module: [barrier], topology: {} } }\n", "must be text"),
        ("defaults: { strict: 1 }\nalgorithms: { a: { module: m.a, topology: none } }\n", "must be true or false"),
        ("algorithms:\n  a: { module: m.a }\n", "missing key 'topology', here or in defaults"),
        ("algorithms:\n  a:\n", "algorithms.a: found nothing, must be a mapping"),
    ],
)
def test_a_file_of_another_form_is_told_so(text: str, says: str) -> None:
    assert says in "\n".join(complaints(text))


def test_an_old_key_warns_that_it_does_nothing() -> None:
    with pytest.warns(UserWarning, match=r"ccl.yaml:1: vc_chunk_size does nothing"):
        cfg = parsed(f"defaults: {{ vc_chunk_size: 256 }}\n{MINIMAL}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cfg.algorithms == parsed(MINIMAL).algorithms


def test_an_unknown_algorithm_lists_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'min'; there are: mine; did you mean 'mine'\?"):
        resolve_algorithm_config(parsed(MINIMAL), "min")


def test_several_algorithms_without_a_default_have_to_be_named() -> None:
    cfg = parsed(f"{MINIMAL}  other: {{ module: m.o, topology: none }}\n")
    with pytest.raises(InputError, match="name one of its algorithms: mine, other"):
        resolve_algorithm_config(cfg)
    assert resolve_algorithm_config(cfg, "other").module == "m.o"
