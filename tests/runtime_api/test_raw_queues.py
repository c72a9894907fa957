"""Kernels on raw queues: installed and launched by one program, on several SIPs at once."""

from __future__ import annotations

import numpy as np
import pytest
from fake_engine import LAUNCH_NS, MAP_NS, no_kernel
from machines import RING, context_on, run_ranks, working_machine

from compiled import SPREAD
from kernbench.ccl.loading import load_algorithm
from kernbench.common.errors import InputError, IpcqDeadlock, IpcqError
from kernbench.policy.placement.dp import DPPolicy


def on_each_sip(torch, make):
    """``make(sip)`` with every SIP as the current one."""
    made = []
    for sip in torch.devices.selected:
        torch.ahbm.set_device(sip)
        made.append(make(sip))
    return made


def test_a_list_of_tensors_is_one_argument_on_several_sips(torch, engine):
    first = on_each_sip(torch, lambda sip: torch.zeros(8, dp=DPPolicy("replicate", "row_wise", num_pes=2)))
    second = on_each_sip(torch, lambda sip: torch.zeros(2))
    begin = engine.now
    work = torch.launch("k", lambda x, n, y, tl: None, first, 3, y=second, async_op=True)
    launches = engine.messages[-2:]
    assert [{target[0] for target in each.targets} for each in launches] == [{0}, {1}]
    assert [(each.args[0].va, each.args[1], each.kwargs[0][1].va) for each in launches] == [
        (x.va, 3, y.va) for x, y in zip(first, second, strict=True)
    ]
    assert [each.grid for each in launches] == [(2, 2, 2)] * 2
    assert work.wait()
    assert engine.now == begin + MAP_NS + LAUNCH_NS


def test_lists_name_the_same_sips(torch):
    tensors = on_each_sip(torch, lambda sip: torch.zeros(2))
    for given in ([tensors, tensors[::-1]], [[tensors[0], tensors[0]]], [tensors, tensors[:1]]):
        with pytest.raises(InputError, match="a list has one tensor for each SIP, all lists in one order; found SIPs"):
            torch.launch("k", lambda *args, tl: None, *given)
    with pytest.raises(InputError, match="are on several SIPs"):
        torch.launch("k", no_kernel, tensors, tensors[0])


def test_a_direct_launch_does_what_ranks_do(tmp_path):
    values = np.arange(3000, dtype=np.float32)
    with context_on(working_machine(2, SPREAD), tmp_path, RING) as torch:

        def program(rank):
            tensor = torch.tensor(values + rank)
            torch.distributed.barrier()
            torch.distributed.all_reduce(tensor)
            result = tensor.numpy()
            tensor.free()  # so that the next ones lie at the same addresses
            return result

        by_ranks = run_ranks(torch, program)
        plan = torch.install_ipcq()
        algorithm = load_algorithm(plan.config)
        tensors = on_each_sip(torch, lambda sip: torch.tensor(values + sip))
        args = algorithm.args_for(torch.topology, n_elem=3000)
        torch.launch("direct", algorithm.kernel, tensors, *args)
        direct = [tensor.numpy() for tensor in tensors]
        times = {
            name: [ns for each in torch.traces if each.name == name for ns in each.pe_exec_ns.values()]
            for name in ("all_reduce", "direct")
        }
    np.testing.assert_array_equal(by_ranks, direct)
    np.testing.assert_array_equal(direct, [2 * values + 1] * 2)
    # The one that starts last waits for nobody.
    assert min(times["direct"]) == pytest.approx(min(times["all_reduce"]), rel=0.01)


def pass_on(x, n, *, tl):
    """Each PE sends what it has to the next and keeps what it gets; ranks are PEs."""
    mine = x + tl.program_id(0) * n * 4
    tl.send("E", tl.load(mine, n, "f32"))
    tl.store(mine, tl.recv("W", n, "f32"))


def test_ranks_that_are_pes(tmp_path):
    with context_on(working_machine(), tmp_path, RING) as torch:
        plan = torch.install_ipcq(world_size_override=4)
        assert plan.rank_to_pe == tuple((0, 0, pe) for pe in range(4))
        tensor = torch.tensor(range(16), dtype="f32", dp=DPPolicy(pe="row_wise", num_cubes=1))
        torch.launch("pass", pass_on, tensor, 4)
        assert tensor.tolist() == [*range(12, 16), *range(12)]
        with pytest.raises(IpcqError, match="has queues already"):
            torch.install_ipcq()
        torch.uninstall_ipcq(plan)
        assert torch.install_ipcq("chosen").world_size == 2
    assert not torch.cleanup_report.leaked


def fails_on_one(x, *, tl):
    """One PE fails, and leaves its neighbour waiting."""
    if tl.program_id(0) == 1:
        raise ZeroDivisionError("on one PE")
    tl.recv("E", 4, "f32")


def test_what_a_kernel_raises_on_one_pe_comes_before_the_wait_of_others(tmp_path):
    with context_on(working_machine(), tmp_path, RING) as torch:
        torch.install_ipcq(world_size_override=4)
        tensor = torch.zeros(8, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
        with pytest.raises(ZeroDivisionError, match="on one PE") as caught:
            torch.launch("k", fails_on_one, tensor)
        assert isinstance(caught.value.__cause__, IpcqDeadlock)
        torch.launch("k", no_kernel, tensor)
        assert tensor.tolist() == [0] * 8


def test_ranks_can_install_after_a_program_has_removed_its_queues(tmp_path):
    with context_on(working_machine(), tmp_path, RING) as torch:
        torch.uninstall_ipcq(torch.install_ipcq())
        run_ranks(torch, lambda rank: torch.distributed.barrier())
