"""The mock runtime: its queues, what it refuses, and what it says when kernels wait for each other."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernbench.ccl.testing import MockMachine, mock_spec, run_kernel_in_mock
from kernbench.common.errors import (
    AddressFaultError,
    InputError,
    IpcqDeadlock,
    IpcqError,
    IpcqInvalidDirection,
    KernelError,
    SimulationDeadlock,
    UnknownNameError,
)


def numbers(ranks: int, n: int = 4) -> list[Any]:
    return [np.full(n, rank + 1, np.float32) for rank in range(ranks)]


def run(kernel: Any, ranks: int = 2, topology: Any = "ring_1d", pes_per_cube: int = 0, **more: Any) -> list[float]:
    """Each rank a SIP with a tensor of its own, unless they are PEs."""
    more.setdefault("ranks_are_sips", not pes_per_cube)
    outputs = run_kernel_in_mock(kernel, ranks, topology, numbers(ranks), pes_per_cube=pes_per_cube, **more)
    return [x[0] for x in outputs]


def pass_on(t: int, *, tl: Any) -> None:
    tl.send("E", tl.load(t, 4, "f32"))
    tl.store(t, tl.recv("W", 4, "f32"))


def test_a_copy_outlives_the_slot_that_it_was_made_of() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        mine = tl.load(t, 4, "f32")
        tl.send("E", mine)
        first = tl.copy(tl.recv("W", 4, "f32"))
        tl.send("E", mine + 10.0)
        tl.store(t, first * 100.0 + tl.recv("W", 4, "f32"))

    assert run(kernel, n_slots=1) == [212, 111]


def test_numbers_of_handles_and_views() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.send("E", tl.load(t, 4, "f32"))
        first = float(tl.value(tl.reshape(tl.recv("W", 4, "f32"), (2, 2)))[0, 1])
        tl.store(t, tl.constant([first], "f32") + tl.zeros(4, "f32"))

    assert run(kernel) == [2, 1]


def own_part(t: int, *, tl: Any) -> None:
    """As on the machine: PEs of a cube get one pointer, and find their part by their number."""
    pass_on(t + tl.program_id(0) * 16, tl=tl)


@pytest.mark.parametrize("ranks", [1, 2, 5, 40])
def test_ranks_are_pes_of_one_cube_unless_something_else_is_said(ranks: int) -> None:
    topology = "ring_1d" if ranks > 1 else {}
    kernel = own_part if ranks > 1 else lambda t, tl: tl.store(t, tl.load(t, 4, "f32"))
    outputs = [x[0] for x in run_kernel_in_mock(kernel, ranks, topology, numbers(ranks))]
    assert outputs == [ranks, *range(1, ranks)]


def test_the_pes_of_one_cube_share_its_barrier() -> None:
    order: list[Any] = []

    def kernel(t: int, *, tl: Any) -> None:
        order.append("before")
        tl.barrier()
        order.append("after")

    run_kernel_in_mock(kernel, 3, "none", numbers(3))
    assert order == ["before"] * 3 + ["after"] * 3


def test_an_algorithm_is_told_what_its_ranks_are() -> None:
    asked: list[Any] = []

    def kernel_args(*, n_elem: int, **told: Any) -> tuple[int, ...]:
        names = ("world_size", "pes_per_cube", "cubes_per_sip", "num_sips", "sip_rank", "ranks_are_sips")
        asked.append([told[name] for name in names])
        return ()

    module = SimpleNamespace(kernel_args=kernel_args)
    run_kernel_in_mock(lambda t, tl: None, 2, "none", numbers(2), algo_module=module)
    run_kernel_in_mock(lambda t, tl: None, 2, "none", numbers(2), algo_module=module, ranks_are_sips=True)
    assert asked == [[2, 2, 1, 1, 0, False]] * 2 + [[2, 1, 1, 2, sip, True] for sip in range(2)]


@pytest.mark.parametrize("name", ["sip_allreduce", "broadcast", "all_gather", "send_recv", "barrier"])
def test_an_algorithm_over_sips_refuses_pes(name: str) -> None:
    module = import_module(f"kernbench.ccl.algorithms.{name}")
    with pytest.raises(InputError, match="is over SIPs: its ranks are all of them, not 3 PEs"):
        run_kernel_in_mock(module.kernel, 3, "none", numbers(3), algo_module=module)


def test_messages_go_where_the_topology_says() -> None:
    assert run(pass_on, 3) == [3, 1, 2]


def test_the_inputs_stay_as_they_were() -> None:
    given = numbers(2)
    run_kernel_in_mock(pass_on, 2, "ring_1d", given)
    assert [x[0] for x in given] == [1, 2]


def test_ranks_as_pes_share_a_pointer() -> None:
    def shifted(t: int, *, tl: Any) -> None:
        local = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        pass_on(t + local * 16, tl=tl)

    assert run(shifted, 5, pes_per_cube=2) == [5, 1, 2, 3, 4]


def test_where_a_rank_is_and_how_many_there_are() -> None:
    seen: list[Any] = []

    def look(t: int, *, tl: Any) -> None:
        seen.append(([tl.program_id(i) for i in range(3)], [tl.num_programs(i) for i in range(3)]))

    run(look, 2)
    run(look, 3, pes_per_cube=2)
    run(look, 3, ranks_are_sips=False)
    sips = [([0, 0, 0], [1, 1, 2]), ([0, 0, 1], [1, 1, 2])]
    two_cubes = [([0, 0, 0], [2, 2, 1]), ([1, 0, 0], [2, 2, 1]), ([0, 1, 0], [2, 2, 1])]
    assert seen == [*sips, *two_cubes, *(([pe, 0, 0], [3, 1, 1]) for pe in range(3))]


def test_a_table_and_a_function_say_who_is_whose_neighbour() -> None:
    def backwards(spec: Any, config: Any) -> Any:
        n = config.world_size
        return [((r, 0, 0), "E", ((r - 1) % n, 0, 0)) for r in range(n)]

    assert run(pass_on, 3, {0: {"E": 2}, 1: {"E": 0}, 2: {"E": 1}}) == [2, 3, 1]
    assert run(pass_on, 3, backwards) == [2, 3, 1]


def test_the_algorithm_may_change_neighbours() -> None:
    def neighbors(rank: int, world_size: int, base: dict[str, int]) -> dict[str, int]:
        return {"E": base["W"], "W": base["E"]}

    module = SimpleNamespace(neighbors=neighbors, kernel_args=lambda **_: ())
    assert run(pass_on, 3, algo_module=module) == [2, 3, 1]


def test_arguments_are_given_or_computed() -> None:
    def scaled(t: int, factor: int, *, tl: Any) -> None:
        tl.store(t, tl.load(t, 4, "f32") * factor)

    asked: list[Any] = []

    def kernel_args(*, n_elem: int, world_size: int, **config: Any) -> tuple[int, ...]:
        asked.append((n_elem, world_size, config["dtype"], config["sip_rank"], config["num_sips"], config["kernel_x"]))
        return (10,)

    assert run(scaled, kernel_args=(3,)) == [3, 6]
    assert run(scaled, algo_module=SimpleNamespace(kernel_args=kernel_args), kernel_x=7) == [10, 20]
    assert asked == [(4, 2, "f32", 0, 2, 7), (4, 2, "f32", 1, 2, 7)]


def test_receive_from_whichever_queue_has_a_message() -> None:
    def gather(t: int, *, tl: Any) -> None:
        mine = tl.load(t, 4, "f32")
        if tl.program_id(2):
            tl.send("parent", mine)
            return
        for _ in range(2):
            mine = mine + tl.recv(None, 4, "f32")
        tl.store(t, mine)

    assert run(gather, 3, "tree_binary") == [6, 2, 3]


def test_posted_receives_and_copies() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        first = tl.recv_async("W", 4, "f32")
        total = first + tl.recv_async("W", 4, "f32")
        mine = tl.load(t, 4, "f32")
        tl.send("E", mine)
        tl.send("E", mine * 10)
        tl.wait(total)
        tl.store(t, total)
        tl.barrier()
        tl.send("W", src_addr=t, shape=4, dtype="f32")
        tl.recv("E", 4, "f32", dst_addr=t, dst_space="hbm")

    assert run(kernel) == [11, 22]


def test_barriers_join_the_pes_of_a_cube() -> None:
    order: list[Any] = []

    def kernel(t: int, *, tl: Any) -> None:
        order.append(("before", tl.program_id(0)))
        tl.barrier()
        order.append(("after", tl.program_id(0)))

    run(kernel, 2, "none", pes_per_cube=2)
    assert [what for what, _ in order] == ["before", "before", "after", "after"]


def test_device_print_names_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.device_print("has", tl.load(t, 2, "f32"))

    run(kernel, 1)
    assert capsys.readouterr().out == "rank 0 (sip0.cube0.pe0): has [1. 1.]\n"


def both_receive(t: int, *, tl: Any) -> None:
    tl.store(t, tl.recv("W", 4, "f32"))


def test_a_deadlock_of_receivers_names_the_cycle() -> None:
    with pytest.raises(IpcqDeadlock) as caught:
        run(both_receive)
    text = str(caught.value)
    a, b = "rank 0 (sip0.cube0.pe0)", "rank 1 (sip1.cube0.pe0)"
    line = both_receive.__code__.co_firstlineno + 1
    assert f"{a}: its kernel waits for a message of queue W, at line {line}" in text
    assert f"no message from queue E of {b}" in text
    assert f"who waits for whom: {a} -> {b} -> {a}" in text


def test_a_deadlock_of_senders_says_that_nobody_receives() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        mine = tl.load(t, 4, "f32")
        for _ in range(3):
            tl.send("E", mine)
        for _ in range(3):
            tl.recv("W", 4, "f32")

    with pytest.raises(IpcqDeadlock, match=r"all 2 slots of queue W of rank 1 .* has yet to receive 2"):
        run(kernel, n_slots=2)
    assert run(kernel, n_slots=3) == [1, 2]


def test_holding_every_slot_blocks_the_next_receive() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        mine, held = tl.load(t, 4, "f32"), []
        for _ in range(3):
            tl.send("E", mine)
            held.append(tl.recv("W", 4, "f32"))

    with pytest.raises(IpcqDeadlock, match="its kernel holds 2 of them"):
        run(kernel, n_slots=2)
    run(kernel, n_slots=3)


def test_a_posted_receive_that_never_completes_is_a_deadlock() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.store(t, tl.recv_async("W", 4, "f32"))

    with pytest.raises(IpcqDeadlock, match="waits for its commands to end"):
        run(kernel)


def test_a_barrier_that_a_pe_never_comes_to() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        if tl.program_id(0):
            tl.barrier()

    with pytest.raises(SimulationDeadlock, match=r"rank 1 .* waits for barrier at line"):
        run(kernel, 2, "none", pes_per_cube=2)


def test_messages_that_nobody_receives_are_an_error() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.send("E", tl.load(t, 4, "f32"))
        tl.send("E", tl.load(t, 4, "f32"))

    with pytest.raises(IpcqError, match=r"left messages unreceived: 2 of queue W \(from sip1"):
        run(kernel)


def test_an_unknown_direction_lists_the_installed_ones() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.send("up", tl.load(t, 4, "f32"))

    with pytest.raises(IpcqInvalidDirection, match="no queue 'up'; installed: E, W"):
        run(kernel)


def test_a_queue_that_only_receives() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.send("W", tl.load(t, 4, "f32"))

    with pytest.raises(IpcqInvalidDirection, match="queue W only receives; those that send: E"):
        run(kernel, 3, "ring_1d_unidir")


def test_a_message_larger_than_a_slot() -> None:
    with pytest.raises(KernelError, match="slot_size is 8"):
        run(pass_on, slot_size=8)


@pytest.mark.parametrize("receive", ["recv", "recv_async"])
def test_a_message_of_another_size(receive: str) -> None:
    def kernel(t: int, *, tl: Any) -> None:
        h = tl.recv("W", 2, "f32") if receive == "recv" and tl.program_id(2) else None
        h = tl.recv_async("W", 2, "f32") if receive != "recv" and tl.program_id(2) else h
        tl.send("E", tl.load(t, 4, "f32"))
        if h is None:
            tl.recv("W", 4, "f32")

    with pytest.raises(KernelError, match="has 16 bytes, the kernel receives 8"):
        run(kernel)


def test_a_kernel_can_catch_what_its_calls_raise() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        try:
            tl.send("up", tl.load(t, 4, "f32"))
        except IpcqInvalidDirection:
            tl.store(t, tl.full(4, 9, "f32"))

    assert run(kernel) == [9, 9]


def test_what_a_kernel_raises_names_its_rank() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        if tl.program_id(2) == 1:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        run(kernel)
    assert caught.value.__notes__ == ["on rank 1 (sip1.cube0.pe0), in the mock"]


def test_an_access_beyond_the_tensor() -> None:
    def kernel(t: int, *, tl: Any) -> None:
        tl.load(t + 8, 4, "f32")

    with pytest.raises(AddressFaultError, match="16 bytes at virtual address"):
        run(kernel)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((pass_on, 3, "ring_1d", numbers(2)), "2 inputs for world_size=3"),
        ((pass_on, 1, "ring_1d", [np.zeros(0, np.float32)]), "at least one element"),
        ((pass_on, 2, {0: {"E": 2}}, numbers(2)), r"names ranks \[2\]: there are ranks 0..1"),
        ((pass_on, 2, 7, numbers(2)), "topology=7: must be a name, a function or a table"),
        ((pass_on, 2, {0: 3}, numbers(2)), "must be a name, a function or a table"),
        ((pass_on, 2.0, "ring_1d", numbers(2)), "world_size=2.0: must be a whole number"),
        ((pass_on, 2, "ring_1d", numbers(2), (), None, -1), "pes_per_cube=-1: must be a whole number, at least 0"),
        ((pass_on, 2, "ring_1d", [np.zeros(4)] * 2), "unknown dtype 'float64'"),
    ],
)
def test_inputs_that_do_not_fit(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_kernel_in_mock(*arguments)


def test_an_unknown_topology_lists_the_names() -> None:
    with pytest.raises(UnknownNameError, match="ring_1d_unidir"):
        run(pass_on, topology="ringg")


def test_shapes_differ_only_where_each_rank_has_its_own_tensor() -> None:
    inputs = [np.zeros(4, np.float32), np.zeros(8, np.float32)]
    run_kernel_in_mock(pass_on, 2, "ring_1d", inputs, ranks_are_sips=True)
    with pytest.raises(InputError, match="one shape and dtype"):
        run_kernel_in_mock(pass_on, 2, "ring_1d", inputs, pes_per_cube=2)


def test_a_machine_runs_several_kernels_on_the_same_memory() -> None:
    machine = MockMachine(mock_spec(2, ranks_are_sips=True), [((0, 0, 0), "E", (1, 0, 0)), ((1, 0, 0), "E", (0, 0, 0))])
    at = {(sip, 0, 0): (machine.memory[sip].place(np.full(4, sip, np.float32)),) for sip in range(2)}

    def there_and_back(t: int, *, tl: Any) -> None:
        tl.send("E", tl.load(t, 4, "f32") + 1)
        tl.store(t, tl.recv("E", 4, "f32"))

    for _ in range(2):
        machine.run(there_and_back, at)
    assert machine.memory[0].read(at[0, 0, 0][0], (4,), np.dtype(np.float32))[0] == 2
    assert all(pair.settled for pe in at for pair in machine.queues(pe).values())


def test_the_rest_of_the_language_computes_as_phase_2_does() -> None:
    def kernel(t: int, w: int, *, tl: Any) -> None:
        x = tl.load(t, (2, 3), "f32", valid=(2, 2), other=1)
        y = tl.dot(x, tl.trans(x))
        tl.store(t, y + tl.sum(y, 0, keepdims=True), strides=(12, 4))
        tl.composite("add", tl.ref(t, (1, 6), "f32"), 1.0, out_ptr=t, epilogue=(("scale", 2.0),))

    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    (out,) = run_kernel_in_mock(kernel, 1, "none", [given], kernel_args=(0,))
    x = given.copy()
    x[:, 2] = 1
    y = x @ x.T
    want = given.copy()
    want[:, :2] = y + y.sum(0, keepdims=True)
    np.testing.assert_array_equal(out, (want + 1) * 2)
