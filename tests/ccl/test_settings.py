"""The settings of an algorithm as a mapping that a program changes before it passes them on."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import compiled
from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.install import install_edges, install_ipcq, load_ccl_config, resolve_algorithm_config
from kernbench.ccl.loading import load_algorithm
from kernbench.ccl.sfr_config import configure_sfr_intercube_multisip
from kernbench.common.errors import ConfigError
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology

CCL = load_ccl_config(Path(__file__).parents[2] / "ccl.yaml")


@pytest.fixture(scope="module")
def small() -> Topology:
    return compiled("sip.cube_mesh.w=2", "sip.cube_mesh.h=1")


@pytest.fixture
def engine(small: Topology) -> GraphEngine:
    return GraphEngine(small)


def test_it_is_a_mapping_with_the_names_of_the_file() -> None:
    cfg = resolve_algorithm_config(CCL, "tree_allreduce_7")
    assert isinstance(cfg, dict)
    assert (cfg["algorithm"], cfg["module"], cfg["world_size"]) == ("tree_allreduce_7", "tree_allreduce", 7)
    assert (cfg["n_slots"], cfg["slot_size"], cfg["ipcq_credit_size_bytes"]) == (4, 4096, 16)
    assert "n_elem" not in cfg
    cfg["n_slots"] = 9
    assert resolve_algorithm_config(CCL, "tree_allreduce_7")["n_slots"] == 4


def test_its_attributes_follow_its_entries() -> None:
    cfg = resolve_algorithm_config(CCL)
    assert (cfg.name, cfg.n_slots, cfg.n_elem, cfg.passthrough) == ("intercube_allreduce", 4, None, ())
    cfg |= {"n_slots": 2, "n_elem": 8, "root_cube": 1, "kernel_w": [1, 2]}
    assert (cfg.n_slots, cfg.n_elem, cfg.slots.ring_bytes) == (2, 8, 2 * 4096)
    assert cfg.passthrough == (("kernel_w", (1, 2)), ("root_cube", 1))
    assert isinstance(cfg.typed, AlgorithmConfig)
    with pytest.raises(AttributeError):
        cfg.no_such_setting  # noqa: B018


def test_changes_reach_the_queues_along_the_machine(engine: GraphEngine) -> None:
    cfg = resolve_algorithm_config(CCL)
    cfg["n_slots"], cfg["slot_size"], cfg["buffer_kind"] = 2, 8192, "sram"
    plan = configure_sfr_intercube_multisip(engine, engine.spec, cfg)
    settings = plan.queues.settings
    assert (plan.buffer_kind, settings.n_slots, settings.slot_size) == ("sram", 2, 8192)


@pytest.mark.parametrize("how", ["algorithm", "ccl"])
def test_changes_reach_an_installation(engine: GraphEngine, how: str) -> None:
    cfg = resolve_algorithm_config(CCL, "ring_allreduce_tcm")
    cfg.update(n_slots=3, world_size=4, topology="ring_1d_unidir")
    plan = install_ipcq(engine, **{how: cfg})
    assert (plan.world_size, plan.queues.settings.n_slots) == (4, 3)
    assert set(plan.neighbor_table[0]) == {"E"}
    cfg["n_slots"] = 7  # what is installed stays as it is
    assert plan.config.n_slots == 3


def test_changes_reach_edges_that_are_installed_by_hand(engine: GraphEngine) -> None:
    cfg = resolve_algorithm_config(CCL, "ring_allreduce_tcm")
    cfg["n_slots"] = 5
    assert install_edges(engine, [((0, 0, 0), "E", (0, 0, 1))], cfg).settings.n_slots == 5


def test_changes_reach_a_context(engine: GraphEngine) -> None:
    cfg = resolve_algorithm_config(CCL, "ring_allreduce_tcm")
    cfg["n_slots"] = 5
    with RuntimeContext(engine) as torch:
        assert torch.install_ipcq(cfg, world_size_override=2).queues.settings.n_slots == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_slot": 3}, "unknown key 'n_slot'; did you mean 'n_slots'"),
        ({"n_slots": 0}, "n_slots"),
        ({"buffer_kind": "l2"}, "buffer_kind"),
        ({"mapper": "nobody"}, "unknown mapper 'nobody'"),
        ({"chunk_size": 1 << 20}, "a message has to fit a slot"),
    ],
)
def test_what_is_wrong_with_them_is_told_as_of_a_file(engine: GraphEngine, change: dict[str, Any], says: str) -> None:
    cfg = resolve_algorithm_config(CCL, "ring_allreduce_tcm")
    cfg.update(change)
    for use in (lambda: install_ipcq(engine, cfg), lambda: configure_sfr_intercube_multisip(engine, None, cfg)):
        with pytest.raises(ConfigError, match=says):
            use()


def test_paths_are_still_those_of_its_file(tmp_path: Path) -> None:
    text = "def kernel(t, *, tl): ...\ndef kernel_args(*, n_elem, world_size, **config): return (config['n_slots'],)\n"
    (tmp_path / "algorithm_beside_it.py").write_text(text)
    (tmp_path / "ccl.yaml").write_text("algorithms:\n  a: { module: algorithm_beside_it.py, topology: ring_1d }\n")
    cfg = resolve_algorithm_config(load_ccl_config(tmp_path / "ccl.yaml"))
    cfg["n_slots"] = 6
    engine = GraphEngine(compiled())
    assert load_algorithm(cfg).args_for(engine.spec, n_elem=1) == (6,)
    assert install_ipcq(engine, cfg, world_size=2).queues.settings.n_slots == 6


NAMES = {each.module: each.name for each in CCL.algorithms}


@pytest.mark.parametrize("module", NAMES)
def test_kernel_args_take_them(module: str) -> None:
    """Beside the size and the ranks; without a ``dtype`` these are those of f16."""
    algorithm, cfg = import_module(f"kernbench.ccl.algorithms.{module}"), resolve_algorithm_config(CCL, NAMES[module])
    ranks = cfg.pop("world_size", 4)
    named = algorithm.kernel.bind_args(algorithm.kernel_args(n_elem=64, world_size=ranks, **cfg))
    assert (named["dtype"], named["n_elem"], named["n_slots"]) == ("f16", 64, 4)
    cfg["n_slots"], cfg["reduce_op"] = 9, "max"
    named = algorithm.kernel.bind_args(algorithm.kernel_args(n_elem=64, world_size=ranks, dtype="f32", **cfg))
    assert (named["dtype"], named["n_slots"], named["reduce_op"]) == ("f32", 9, "max")


def test_a_kernel_by_hand_reduces_f16(small: Topology) -> None:
    """As programs are written that launch an algorithm themselves: nothing says which type."""
    algorithm: Any = import_module("kernbench.ccl.algorithms.ring_allreduce")
    cfg = resolve_algorithm_config(CCL, "ring_allreduce_tcm")
    cfg["chunk_size"], n, ranks = 64, 100, 4
    with RuntimeContext(GraphEngine(small)) as torch:
        torch.install_ipcq(cfg, world_size_override=ranks)
        data = np.arange(ranks * n, dtype=np.float16).reshape(ranks, n) / 16
        x = torch.tensor(data, dtype="f16", dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=ranks))
        torch.launch("reduce", algorithm.kernel, x, *algorithm.kernel_args(n_elem=n, world_size=ranks, **cfg))
        np.testing.assert_allclose(x.numpy(), np.tile(data.sum(0, dtype=np.float32), (ranks, 1)), rtol=2e-3)
