"""Queues on the machine: what gets installed, what it takes, and that a failure leaves nothing behind."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ccl_support import machine, sips
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.diagnostics import IpcqDeadlock, pointer_dump, trace_ccl
from kernbench.ccl.install import (
    QueueSettings,
    find_algorithm,
    install_edges,
    install_ipcq,
    prepare_queues,
    release_rings,
    resolve_algorithm_config,
    uninstall,
)
from kernbench.ccl.loading import ccl_config_of, load_ccl_config
from kernbench.ccl.queues import unite
from kernbench.ccl.sfr_config import configure_sfr_intercube_multisip
from kernbench.ccl.topologies import fabric_edges, intercube_edges
from kernbench.common.config import parse_document
from kernbench.common.errors import AllocationError, ConfigError, InputError, IpcqError
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import queue_pairs_of
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, PeCoord
from kernbench.triton_emu.schedules import ScheduledKernel

CCL = load_ccl_config(Path(__file__).parents[2] / "ccl.yaml")
A, B, C = (0, 0, 0), (0, 0, 1), (0, 0, 2)
PAIR = [(A, "E", B), (B, "W", A)]


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(machine())


def taken(engine: GraphEngine, *pes: PeCoord) -> list[int]:
    """Bytes that are allocated in all memories of these PEs."""
    found = []
    for pe in pes:
        own, cube = engine.allocators[pe], engine.cube_allocator(*pe[:2])
        found += [sum(extent.nbytes for extent in space.live) for space in (own.tcm, own.hbm, cube.sram)]
    return found


def test_a_plan_says_what_was_installed(engine: GraphEngine) -> None:
    plan = install_ipcq(engine, "ring_allreduce_tcm", ccl=CCL)
    assert (plan.world_size, plan.buffer_kind) == (2, "tcm")
    assert plan.rank_to_pe == ((0, 0, 0), (1, 0, 0))
    assert plan.neighbor_table == {0: {"E": 1, "W": 1}, 1: {"E": 0, "W": 0}}
    assert engine.now > 0


def test_both_ends_of_a_queue_know_each_other(engine: GraphEngine) -> None:
    install_ipcq(engine, "ring_allreduce_hbm", world_size=5, ccl=CCL)
    for rank in range(5):
        pairs = queue_pairs_of(engine.machine, (0, 0, rank))
        assert list(pairs) == ["E", "W"]
        for pair in pairs.values():
            there = queue_pairs_of(engine.machine, pair.peer.pe)[pair.peer.direction]
            assert there.peer.rx_base_pa == pair.my_rx_base_pa
            assert pair.peer.rx_base_pa == there.my_rx_base_pa
            assert (there.peer.pe, there.peer.direction) == ((0, 0, rank), pair.direction)


def test_the_default_algorithm_is_installed_when_none_is_named(engine: GraphEngine) -> None:
    plan = install_ipcq(engine, ccl=CCL)
    assert plan.config.name == "intercube_allreduce"
    assert len(plan.queues.messages) == 32
    assert plan.neighbor_table[0] == {"global_E": 1, "global_W": 1}
    assert plan.rank_pes[1][3] == (1, 3, 0)


def test_a_file_is_read_when_its_path_is_given(engine: GraphEngine, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algorithms:\n  a: { module: barrier, topology: tree_binary, world_size: 3, n_slots: 2 }\n")
    plan = install_ipcq(engine, ccl=file)
    assert plan.neighbor_table[0] == {"child_left": 1, "child_right": 2}
    assert queue_pairs_of(engine.machine, A)["child_left"].n_slots == 2


def test_one_rank_needs_no_queues() -> None:
    plan = install_ipcq(GraphEngine(machine("system.sips.count=1")), "ring_allreduce_tcm", ccl=CCL)
    assert (plan.queues.messages, plan.neighbor_table) == ((), {0: {}})


@pytest.mark.parametrize("world_size", [0, 257, 1 << 60])
def test_a_world_that_the_machine_has_not(engine: GraphEngine, world_size: int) -> None:
    with pytest.raises(InputError, match=f"world_size={world_size}") as caught:
        install_ipcq(engine, "ring_allreduce_tcm", world_size, CCL)
    assert "SIP" not in str(caught.value)


def test_settings_reach_the_queues(engine: GraphEngine) -> None:
    text = (
        "defaults: { n_slots: 3, slot_size: 1040, buffer_kind: sram, backpressure: poll, poll_ns: 7,"
        " ipcq_credit_size_bytes: 32 }\nalgorithms:\n  a: { module: barrier, topology: ring_1d }\n"
    )
    plan = install_ipcq(engine, ccl=ccl_config_of(parse_document(text, "ccl.yaml")))
    message = plan.queues.messages[0]
    assert (message.buffer_kind, message.backpressure, message.poll_ns, message.credit_bytes) == ("sram", "poll", 7, 32)
    assert {(queue.n_slots, queue.slot_size) for queue in message.queues} == {(3, 1040)}
    assert taken(engine, A) == [0, 0, 2 * 3136]


def test_traffic_of_a_global_queue_leaves_by_its_link(engine: GraphEngine) -> None:
    install_edges(engine, fabric_edges(engine.spec), QueueSettings())
    via = {direction: pair.via_port for direction, pair in queue_pairs_of(engine.machine, (1, 3, 4)).items()}
    assert via == {"global_E": "E", "global_W": "W", "sip0": None}


def test_a_queue_without_a_way_back_has_one_ring(engine: GraphEngine) -> None:
    queues = install_edges(engine, [(A, "E", B)], QueueSettings())
    sender, receiver = queue_pairs_of(engine.machine, A)["E"], queue_pairs_of(engine.machine, B)["W"]
    assert sender.my_rx_base_pa is None
    assert receiver.peer.rx_base_pa is None
    assert sender.peer.rx_base_pa == receiver.my_rx_base_pa
    assert [(taken.pe, taken.nbytes) for taken in queues.reservations] == [(B, 4 * 4096)]


@pytest.mark.parametrize("kind", ["tcm", "hbm", "sram"])
def test_uninstalling_gives_everything_back(engine: GraphEngine, kind: str) -> None:
    for _ in range(2):
        plan = install_ipcq(engine, f"ring_allreduce_{kind}", world_size=3, ccl=CCL)
        assert sum(taken(engine, A)) > 0
        uninstall(engine, plan.queues)
        assert taken(engine, A, B, C) == [0] * 9
        assert not queue_pairs_of(engine.machine, A)


def test_messages_may_be_carried_out_in_any_order(engine: GraphEngine) -> None:
    queues = prepare_queues(engine, fabric_edges(engine.spec), QueueSettings())
    assert not queue_pairs_of(engine.machine, A)
    for handle in [engine.submit(message) for message in reversed(queues.messages)]:
        engine.wait(handle)
    assert set(queue_pairs_of(engine.machine, A)) == {"global_E", "global_W", "sip1"}
    for handle in [engine.submit(message) for message in queues.removals()]:
        engine.wait(handle)
    release_rings(engine, queues)
    assert taken(engine, *queues.pes[:9]) == [0] * 27


def test_a_second_install_is_refused_before_anything_is_reserved(engine: GraphEngine) -> None:
    install_edges(engine, PAIR, QueueSettings())
    before = taken(engine, A, B, C)
    with pytest.raises(IpcqError, match=r"sip0.cube0.pe1 has queues already \(W\)"):
        install_edges(engine, [(C, "E", B), (B, "W", C)], QueueSettings())
    assert taken(engine, A, B, C) == before
    assert not queue_pairs_of(engine.machine, C)


@pytest.mark.parametrize("kind", ["tcm", "hbm", "sram"])
def test_a_full_memory_leaves_nothing_reserved(engine: GraphEngine, kind: Any) -> None:
    memory = engine.cube_allocator(0, 1) if kind == "sram" else engine.allocators[0, 1, 0]
    space = getattr(memory, kind)
    space.alloc(space.free_bytes)
    before = taken(engine, A, (0, 1, 0))
    edges = [(A, "E", (0, 1, 0)), ((0, 1, 0), "W", A)]
    says = rf"queues of sip0.cube1.pe0 need 16384 bytes of {kind} \(1 rings of 4 slots of 4096 bytes\): .*largest hole"
    with pytest.raises(AllocationError, match=says):
        install_edges(engine, edges, QueueSettings(buffer_kind=kind))
    assert taken(engine, A, (0, 1, 0)) == before


def test_edges_that_cannot_be_installed_reserve_nothing(engine: GraphEngine) -> None:
    with pytest.raises(IpcqError, match="own neighbour"):
        install_edges(engine, [*PAIR, (C, "E", C)], QueueSettings())
    assert taken(engine, A, B, C) == [0] * 9


def test_an_install_that_fails_on_the_way_is_taken_back(engine: GraphEngine) -> None:
    first = prepare_queues(engine, PAIR, QueueSettings())
    engine.submit(first.messages[1])
    with pytest.raises(IpcqError, match="has queues already"):
        install_edges(engine, PAIR, QueueSettings())
    assert not queue_pairs_of(engine.machine, A)
    assert taken(engine, A, B) == [16384, 0, 0, 16384, 0, 0]


@given(st.sampled_from(["tcm", "hbm", "sram"]), st.integers(1, 5), st.integers(4, 90), st.sampled_from([1, 2, 4, 6]))
def test_rings_and_tensors_never_overlap(kind: Any, n_slots: int, size: int, n_sips: int) -> None:
    engine = GraphEngine(machine(f"system.sips.count={n_sips}", "sip.cube_mesh.w=1", "sip.cube_mesh.h=2"))
    tensors = [(engine.allocators[pe].alloc_tcm(1000).encode(), 1000) for pe in list(engine.allocators)[::3]]
    edges = unite(intercube_edges(engine.spec), fabric_edges(engine.spec))
    queues = prepare_queues(engine, edges, QueueSettings(buffer_kind=kind, n_slots=n_slots, slot_size=16 * size))
    rings = [(q.rx_base_pa, n_slots * 16 * size) for m in queues.messages for q in m.queues if q.rx_base_pa is not None]
    assert len(rings) == len(edges)
    assert all(base % 64 == 0 for base, _ in rings)
    ranges = sorted(tensors + rings)
    assert all(low + nbytes <= start for (low, nbytes), (start, _) in pairwise(ranges))
    assert {str(engine.machine.addresses.decode(base).component) for base, _ in rings} <= {kind}


def test_cubes_and_sips_along_the_machine(engine: GraphEngine) -> None:
    plan = configure_sfr_intercube_multisip(engine, engine.spec, CCL)
    assert (plan.world_size, plan.buffer_kind) == (32, "tcm")
    assert [(each.sip, each.cube, each.pe) for each in plan.rank_to_pe] == [(*divmod(r, 16), 0) for r in range(32)]
    peers = {name: (peer.sip, peer.cube, peer.pe) for name, peer in plan.neighbor_table[16 + 5].items()}
    assert peers == {
        "E": (1, 6, 0), "W": (1, 4, 0), "N": (1, 1, 0), "S": (1, 9, 0), "global_E": (0, 5, 0), "global_W": (0, 5, 0)
    }  # fmt: skip
    assert set(plan.neighbor_table[0]) == {"E", "S", "global_E", "global_W"}
    mesh = {0: {"E", "S"}, 5: {"E", "W", "N", "S"}, 15: {"N", "W"}}
    for sip in range(2):
        for cube, sides in mesh.items():
            pairs = queue_pairs_of(engine.machine, (sip, cube, 0))
            assert set(pairs) == sides | {"global_E", "global_W"}
            assert pairs["global_E"].peer.pe == (1 - sip, cube, 0)


def test_the_settings_of_an_algorithm_do_for_the_machine() -> None:
    engine = GraphEngine(machine("system.sips.count=4", "system.sips.topology=mesh_2d_no_wrap"))
    plan = configure_sfr_intercube_multisip(engine, engine.spec, resolve_algorithm_config(CCL, "ring_allreduce_sram"))
    assert plan.buffer_kind == "sram"
    assert plan.neighbor_table[3 * 16] == {"E": 49, "S": 52, "global_W": 32, "global_N": 16}


@pytest.mark.parametrize(
    "form",
    [
        lambda engine: engine.spec,
        lambda engine: engine.topology,
        lambda engine: engine.spec.model_dump(),
        lambda engine: {"system": {"sips": {"count": 4, "topology": "mesh_2d"}}},
        lambda engine: None,
    ],
)
def test_the_machine_may_be_given_in_several_forms(form: Any) -> None:
    engine = GraphEngine(machine("system.sips.count=4", "system.sips.topology=torus_2d"))
    assert configure_sfr_intercube_multisip(engine, form(engine), CCL).world_size == 64


@pytest.mark.parametrize("spec", [sips(3), {"system": {"sips": {"count": 3}}}, {"sip": {"cube_mesh": {"w": 2}}}])
def test_another_machine_is_refused(engine: GraphEngine, spec: Any) -> None:
    with pytest.raises(InputError, match=r"pass engine\.spec"):
        configure_sfr_intercube_multisip(engine, spec, CCL)


def test_the_queues_may_be_those_of_a_file(engine: GraphEngine, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algorithms:\n  a: { module: barrier, topology: none, buffer_kind: hbm }\n")
    plan = configure_sfr_intercube_multisip(engine, None, str(file))
    assert plan.buffer_kind == "hbm"
    uninstall(engine, plan.queues)
    plan = configure_sfr_intercube_multisip(engine, engine.spec, {"buffer_kind": "sram", "n_slots": 2})
    assert (plan.buffer_kind, plan.queues.settings.n_slots) == ("sram", 2)
    with pytest.raises(ConfigError, match="unknown key 'slots'"):
        configure_sfr_intercube_multisip(engine, engine.spec, {"slots": 2})


@pytest.mark.parametrize(
    "cfg",
    [
        {"defaults": {"algorithm": "b", "n_slots": 2}, "algorithms": {"b": {"module": "barrier", "topology": "none"}}},
        {"algorithm": "b", "module": "barrier", "topology": "ring_1d", "n_slots": 2},
        {"algorithm": "intercube_allreduce", "strict": True, "n_slots": 2, "root_cube": 3},
    ],
    ids=["a whole file", "an algorithm over the defaults", "with keys that only defaults have"],
)
def test_the_queues_may_be_those_of_a_mapping(engine: GraphEngine, cfg: dict[str, Any]) -> None:
    """As ``yaml.safe_load`` reads it, and as programs merge it."""
    before = deepcopy(cfg)
    assert configure_sfr_intercube_multisip(engine, engine.spec, cfg).queues.settings.n_slots == 2
    assert cfg == before


def test_a_world_size_that_is_given_means_pes(engine: GraphEngine, tmp_path: Path) -> None:
    """As many as SIPs too; in ccl.yaml so many ranks are SIPs."""
    file = tmp_path / "ccl.yaml"
    file.write_text("algorithms:\n  a: { module: tree_allreduce, topology: tree_binary, world_size: 2 }\n")
    plan = install_ipcq(engine, world_size=2, ccl=file)
    assert plan.rank_to_pe == ((0, 0, 0), (0, 0, 1))
    assert [(each.sip, each.cube, each.pe) for each in plan.rank_to_pe] == [(0, 0, 0), (0, 0, 1)]
    assert plan.neighbor_table == {0: {"child_left": 1}, 1: {"parent": 0}}
    assert (plan.neighbor_table[0]["child_left"].sip, plan.neighbor_table[0]["child_left"].pe) == (0, 1)
    uninstall(engine, plan.queues)
    assert install_ipcq(engine, ccl=file).rank_to_pe == ((0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize("name", ["tree_allreduce", "hierarchical_allreduce", "ring_allreduce", "mesh_allreduce"])
def test_arguments_follow_what_ranks_are(name: str) -> None:
    """Of four ranks on four SIPs: a kernel of PEs is told that they are none."""
    topology = {"tree_allreduce": "tree_binary", "hierarchical_allreduce": "hierarchical_3level"}.get(name, "torus_2d")
    text = f"algorithms:\n  a: {{ module: {name}, topology: {topology} }}\n"
    cfg = ccl_config_of(parse_document(text, "ccl.yaml"))
    spec = machine("system.sips.count=4", "system.sips.topology=torus_2d", "system.sips.w=4", "system.sips.h=1").spec
    of_sips, of_pes = (find_algorithm(None, n, cfg) for n in (None, 4))
    assert isinstance(of_sips.kernel, ScheduledKernel)
    told = [of_sips.kernel.bind_args(each.args_for(spec, n_elem=9)) for each in (of_sips, of_pes)]
    assert [each["ranks_are_sips"] for each in told] == [True, False]
    assert told[0] == told[1] | {"ranks_are_sips": True}


def test_intercube_has_no_ranks_that_are_pes(engine: GraphEngine) -> None:
    with pytest.raises(InputError, match="intercube: world_size=2 of PEs, but its ranks are the SIPs"):
        install_ipcq(engine, "intercube_allreduce", world_size=2, ccl=CCL)


def test_intercube_without_a_topology_has_the_queues_of_the_machine(engine: GraphEngine, tmp_path: Path) -> None:
    file = tmp_path / "ccl.yaml"
    entry = "{ module: intercube_allreduce, topology: none, mapper: pe0_of_every_cube }"
    file.write_text(f"algorithms:\n  mine: {entry}\n")
    plan = install_ipcq(engine, ccl=file)
    assert set(plan.queues.edges) == set(intercube_edges(engine.spec))


@pytest.mark.parametrize("world_size", ["8", 2.5, True, -3])
def test_a_world_size_is_a_count(engine: GraphEngine, world_size: Any) -> None:
    with pytest.raises(InputError, match=r"world_size=.*: must be a whole number, at least 1"):
        install_ipcq(engine, "ring_allreduce_tcm", world_size, CCL)


def test_the_way_edges_are_planned_does_not_depend_on_hashing() -> None:
    edges = unite(intercube_edges(machine().spec), fabric_edges(machine().spec))
    one, other = (prepare_queues(GraphEngine(machine()), edges, QueueSettings()) for _ in range(2))
    assert (one.edges, one.messages, one.reservations) == (other.edges, other.messages, other.reservations)
    assert list(one.pes) == sorted(one.pes)


def exchange(t_ptr: object, tl: Any) -> None:
    """Each PE sends its number to the other and prints what it gets."""
    way = "E" if tl.program_id(0) == 0 else "W"
    tl.send(way, tl.full((8,), tl.program_id(0), "f32"))
    got = tl.recv(way, (8,), "f32")
    tl.device_print("got", got + 0)


def only_receive(t_ptr: object, tl: Any) -> None:
    """Both wait for the other."""
    tl.recv("E" if tl.program_id(0) == 0 else "W", (8,), "f32")


def run(engine: GraphEngine, kernel: Any) -> None:
    message = KernelLaunchMsg(kernel=KernelRef(name="k", function=kernel), args=(None,), targets=(A, B))
    engine.wait(engine.submit(message))


def test_messages_go_where_the_plan_says(engine: GraphEngine) -> None:
    install_edges(engine, PAIR, QueueSettings())
    run(engine, exchange)
    got = {line.pe: line.text for line in engine.printed()}
    assert got == {A: f"got [{' '.join(['1.'] * 8)}]", B: f"got [{' '.join(['0.'] * 8)}]"}


def test_pointers_are_listed_by_pe_and_direction(engine: GraphEngine) -> None:
    install_edges(engine, PAIR, QueueSettings())
    run(engine, exchange)
    _, first, second = pointer_dump(engine).splitlines()
    for word in ("sip0.cube0.pe0 E", "my_head=1", "my_tail=1", "peer_head_cache=1", "peer_tail_cache=1", "TCM sip=0"):
        assert word in first
    assert "sip0.cube0.pe1 W" in second


def test_a_deadlock_says_who_waits_for_whom(engine: GraphEngine) -> None:
    install_edges(engine, PAIR, QueueSettings())
    with pytest.raises(IpcqDeadlock, match=r"sip0.cube0.pe0 -> sip0.cube0.pe1 -> sip0.cube0.pe0"):
        run(engine, only_receive)


def test_every_message_is_traced_once_at_each_end(engine: GraphEngine, capsys: pytest.CaptureFixture[str]) -> None:
    install_edges(engine, PAIR, QueueSettings())
    trace_ccl(engine)
    trace_ccl(engine)
    run(engine, exchange)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("32 bytes  #0" in line and " ns " in line for line in lines)
    seen = {(line.split()[3], line.split()[4], line.split()[6]) for line in lines}
    assert seen == {(pe, way, direction) for pe, direction in (("sip0.cube0.pe0", "E"), ("sip0.cube0.pe1", "W"))
                    for way in ("send", "recv")}  # fmt: skip


@pytest.mark.parametrize(("value", "lines"), [("1", 4), ("0", 0), ("", 0)])
def test_the_environment_asks_for_a_trace(
    engine: GraphEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, lines: int
) -> None:
    monkeypatch.setenv("KERNBENCH_CCL_TRACE", value)
    install_edges(engine, PAIR, QueueSettings())
    run(engine, exchange)
    assert len(capsys.readouterr().out.splitlines()) == lines
