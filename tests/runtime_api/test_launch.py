from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from fake_engine import LAUNCH_NS, FakeEngine, no_kernel

from kernbench.common.errors import InputError, SimulationDeadlock, UnknownNameError
from kernbench.messages.requests import KernelLaunchMsg, MemoryWriteMsg, MmuMapMsg, PeDmaMsg, TensorArg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext


def axpy(x, y, a, *, tl, block=4):
    """A kernel's signature."""


def launched(engine) -> KernelLaunchMsg:
    message = engine.messages[-1]
    assert isinstance(message, KernelLaunchMsg)
    return message


def test_every_pe_that_owns_a_shard_runs_it_once(torch, engine):
    x = torch.zeros(8, dp=DPPolicy("replicate", "row_wise", num_pes=2), name="x")
    y = torch.zeros(8, dp=DPPolicy("replicate", "replicate", num_cubes=1, num_pes=3))
    torch.launch("axpy", axpy, x, np.float32(0.5), a=y, block=np.int64(8))
    message = launched(engine)
    assert message.targets == ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1))
    assert (message.name, message.kernel.name, message.kernel.function) == ("axpy", "axpy", axpy)
    owners = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1))
    assert message.args[0] == TensorArg(name="x", va=x.va, shape=(8,), dtype=torch.f32, owners=owners)
    assert message.args[1] == 0.5
    assert [type(value) for _, value in message.kwargs] == [TensorArg, int]
    record = torch.traces[-1]
    assert (record.phase, record.name, record.sip, record.total_ns, record.ok) == ("launch", "axpy", 0, LAUNCH_NS, True)
    assert tuple(record.pe_exec_ns) == message.targets


def test_a_dtype_goes_by_its_name(torch, engine):
    torch.launch("k", no_kernel, torch.zeros(2), torch.bfloat16, None, "text", True)
    assert launched(engine).args[1:] == ("bf16", None, "text", True)


def test_kernels_of_the_package_go_by_name(torch, engine):
    x = torch.zeros(2)
    torch.launch("copy", "builtin.offset_copy", x, x, 2, 8, "f32")
    assert launched(engine).kernel.name == "builtin.offset_copy"
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'matmul'.*builtin\.gemm"):
        torch.launch("mm", "matmul", x)


def test_a_kernel_without_a_name_goes_by_the_launchs(torch, engine):
    torch.launch("mine", partial(axpy, a=1), torch.zeros(2), 2)
    assert launched(engine).kernel.name == "mine"


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, 2, 3), {}, "no argument is a tensor"),
        (("T",), {}, "do not fit 'axpy': missing a required argument: 'y'"),
        (("T", 1, 2, 3), {}, "too many positional arguments"),
        (("T", 1, 2), {"speed": 1}, "unexpected keyword argument 'speed'"),
        (("T", 1, 2), {"tl": None}, "leave it out"),
        (("T", np.zeros(2), 2), {}, "argument 1 is a ndarray.*t.copy_"),
        (("T", 1, 2), {"block": (1, 2.5)}, "block is a tuple"),
    ],
)
def test_arguments_no_kernel_can_have(torch, args, kwargs, words):
    tensor = torch.zeros(2)
    given = [tensor if isinstance(arg, str) else arg for arg in args]
    with pytest.raises(InputError, match=f"(?s)launch 'k'.*{words}"):
        torch.launch("k", axpy, *given, **kwargs)


def test_tensors_of_one_launch_lie_on_one_sip(torch):
    first = torch.zeros(2, name="a")
    torch.ahbm.set_device(1)
    second = torch.zeros(2, name="b")
    with pytest.raises(InputError, match="a on sip0, b on sip1"):
        torch.launch("k", no_kernel, first, second)


def test_one_driver_launches_on_every_sip_and_then_waits(torch, engine):
    tensors = []
    for sip in (0, 1):
        torch.ahbm.set_device(sip)
        tensors.append(torch.zeros(2))
    begin = engine.now
    works = [torch.launch("k", no_kernel, each, async_op=True) for each in tensors]
    assert all(work.wait() for work in works)
    assert engine.now == begin + LAUNCH_NS
    assert [record.sip for record in torch.traces if record.phase == "launch"] == [0, 1]


def broken(x, *, tl):
    raise ZeroDivisionError("in the kernel")


def test_what_a_kernel_raises_comes_out_of_the_launch(machine):
    with RuntimeContext(FakeEngine(machine, run_kernels=True)) as torch:
        with pytest.raises(ZeroDivisionError, match="in the kernel"):
            torch.launch("k", broken, torch.zeros(2))
        assert not torch.traces[-1].ok


def test_an_error_nobody_waited_for_comes_out_at_the_end(machine):
    with (
        pytest.raises(ZeroDivisionError),
        RuntimeContext(FakeEngine(machine, run_kernels=True)) as torch,
    ):
        torch.launch("k", broken, torch.zeros(2, name="x"), async_op=True)
    assert [each.name for each in torch.cleanup_report.freed] == ["x"]


def test_a_deadlock_is_raised_and_memory_is_given_back(engine):
    with pytest.raises(SimulationDeadlock), RuntimeContext(engine) as torch:
        torch.launch("never", no_kernel, torch.zeros(2))
    assert not engine.allocators[0, 0, 0].hbm.live


def test_a_deadlock_that_was_caught_does_not_come_back_at_the_end(engine):
    with RuntimeContext(engine) as torch:
        stuck = torch.zeros(2)
        with pytest.raises(SimulationDeadlock):
            torch.launch("never", no_kernel, stuck)
        assert stuck.numpy().tolist() == [0, 0]
    assert not engine.allocators[0, 0, 0].hbm.live


def test_requests_of_the_level_below(torch, engine):
    pa = torch.zeros(64, name="x").shards[0].pa
    handle = torch.submit(MemoryWriteMsg(pa=pa, nbytes=4, data=np.array([0, 0, 128, 63], np.uint8)))
    assert not handle.done
    assert torch.wait(handle).ok
    assert torch.wait(handle).request_id == handle.request_id
    torch.wait(torch.submit(PeDmaMsg(pe=(1, 0, 2), pa=pa, nbytes=64, repeat=3)))
    *_, write, dma = torch.traces
    assert (write.phase, write.sip, write.nbytes) == ("h2d", 0, 4)
    assert (dma.phase, dma.sip, dma.nbytes) == ("dma", 1, 192)
    assert torch.engine is engine
    assert torch.topology.pes_per_sip == 8


def test_a_launch_maps_tensors_on_the_pes_that_do_not_know_them(torch, engine):
    alone, spread = torch.zeros(4, name="alone"), torch.zeros(8, dp=DPPolicy(pe="row_wise", num_cubes=1), name="spread")
    before = len(engine.messages)
    torch.launch("k", axpy, alone, spread, 1)
    mapping, launch = engine.messages[before:]
    assert isinstance(mapping, MmuMapMsg)
    assert mapping.mapping.name == "alone"
    assert mapping.target_pe == tuple(pe for pe in launch.targets if pe != (0, 0, 0))
    torch.launch("k", axpy, alone, spread, 1)
    assert isinstance(engine.messages[-2], KernelLaunchMsg)  # nothing to map any more
    alone.free()
    assert engine.messages[-1].target_pe == launch.targets


def test_pes_that_form_no_grid_are_warned_of(torch):
    two_cubes = torch.zeros(8, dp=DPPolicy(cube="row_wise", num_cubes=2, num_pes=1))
    one_cube = torch.zeros(8, dp=DPPolicy(pe="row_wise", num_cubes=1))
    with pytest.warns(RuntimeWarning, match="num_programs says"):
        torch.launch("k", no_kernel, two_cubes, one_cube)


def test_a_kernel_without_tl_is_refused(torch):
    def scale(x, factor):
        """Scale nothing."""

    with pytest.raises(InputError, match=r"'scale' has no parameter tl.*def scale\(x, n, \*, tl\)"):
        torch.launch("k", scale, torch.zeros(2), 2)
    torch.launch("any", lambda x, **options: None, torch.zeros(2))
