"""What tensors cost: which messages, what overlaps, what waits for what."""

from __future__ import annotations

import numpy as np
import pytest
from fake_engine import FILL_NS, HOST_GBS, HOST_LATENCY_NS, LAUNCH_NS, MAP_NS, FakeEngine, no_kernel

from kernbench.common.errors import AllocationError, InputError
from kernbench.messages.requests import MemoryReadMsg, MemoryWriteMsg, MmuMapMsg, MmuUnmapMsg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

BY_ROW = DPPolicy("row_wise", "row_wise")


def kinds(engine, since=0):
    return [type(msg).__name__ for msg in engine.messages[since:]]


def host_ns(nbytes):
    return HOST_LATENCY_NS + nbytes / HOST_GBS


def test_a_new_tensor_is_mapped_and_filled_by_the_device(torch, engine):
    torch.zeros(8, 4, dtype="f16", dp=BY_ROW)
    mapping, *fills = engine.messages
    assert isinstance(mapping, MmuMapMsg)
    assert mapping.sip == 0
    assert len(mapping.target_pe) == 8
    assert [(fill.nbytes, fill.pattern, fill.data) for fill in fills] == [(8, b"\0\0", None)] * 8
    assert engine.now == max(MAP_NS, FILL_NS)


def test_an_empty_one_is_only_mapped(torch, engine):
    torch.empty(8, 4, dp=BY_ROW)
    assert kinds(engine) == ["MmuMapMsg"]
    assert engine.now == MAP_NS


def test_transfers_of_shards_overlap(torch, engine):
    tensor = torch.empty(8, 64, dp=BY_ROW)
    begin = engine.now
    tensor.copy_(np.zeros((8, 64)))
    assert engine.now - begin == host_ns(256)
    begin = engine.now
    tensor.numpy()
    assert engine.now - begin == host_ns(256)
    assert kinds(engine)[1:] == ["MemoryWriteMsg"] * 8 + ["MemoryReadMsg"] * 8


def test_every_copy_is_written_and_one_is_read(torch, engine):
    tensor = torch.empty(8, 8, dp=DPPolicy("replicate", "column_wise"))
    tensor.copy_(np.zeros((8, 8))).numpy()
    assert sum(isinstance(msg, MemoryWriteMsg) for msg in engine.messages) == 8
    reads = [msg for msg in engine.messages if isinstance(msg, MemoryReadMsg)]
    assert [msg.pa for msg in reads] == [shard.pa for shard in tensor.shards if shard.cube == 0]


def test_data_is_taken_when_it_is_copied(torch):
    host = np.ones(4, np.float32)
    tensor = torch.tensor(host)
    host[:] = 9
    assert tensor.tolist() == [1] * 4


def test_messages_carry_names_and_the_correlation_id(engine):
    with RuntimeContext(engine, correlation_id="run-7") as torch:
        torch.zeros(2)
        torch.zeros(2, name="w")
        torch.zeros(2)
    assert {msg.correlation_id for msg in engine.messages} == {"run-7"}
    assert list(dict.fromkeys(msg.name for msg in engine.messages)) == ["tensor0", "w", "tensor1"]


def test_the_host_waits_for_a_launch_that_uses_the_tensor(torch, engine):
    used, other = torch.zeros(4), torch.zeros(4)
    begin = engine.now
    work = torch.launch("k", no_kernel, used, async_op=True)
    assert engine.now == begin
    other.numpy()
    assert not work.is_completed()
    used[0] = 1
    assert work.is_completed()
    assert engine.now == begin + LAUNCH_NS + host_ns(4)
    assert work.wait()
    assert engine.now == begin + LAUNCH_NS + host_ns(4)


@pytest.mark.parametrize("touch", ["numpy", "fill_", "copy_", "free", "settle"])
def test_every_way_to_touch_a_tensor_waits(torch, engine, touch):
    tensor = torch.zeros(4)
    work = torch.launch("k", no_kernel, tensor, async_op=True)
    {
        "numpy": tensor.numpy,
        "fill_": lambda: tensor.fill_(1),
        "copy_": lambda: torch.zeros(4).copy_(tensor),
        "free": tensor.free,
        "settle": tensor.settle,
    }[touch]()
    assert work.is_completed()


def test_looking_does_not_wait_or_cost(torch, engine):
    tensor = torch.zeros(4)
    work = torch.launch("k", no_kernel, tensor, async_op=True)
    now, sent = engine.now, len(engine.messages)
    assert "mean=0" in repr(tensor)
    assert (tensor.peek() == 0).all()
    assert (engine.now, len(engine.messages)) == (now, sent)
    assert not work.is_completed()


def test_free_unmaps_and_gives_memory_back(torch, engine):
    tensor = torch.zeros(4, name="w")
    va, pa = tensor.va, tensor.shards[0].pa
    tensor.free()
    assert isinstance(engine.messages[-1], MmuUnmapMsg)
    assert engine.messages[-1].va_base == va
    assert not tensor.is_live
    assert repr(tensor) == "Tensor(w, shape=(4,), dtype=f32, sip0, 1 shard, freed)"
    again = torch.zeros(4)
    assert (again.va, again.shards[0].pa) == (va, pa)
    for use in (
        tensor.numpy,
        tensor.free,
        tensor.peek,
        lambda: tensor.fill_(0),
        lambda: torch.launch("k", no_kernel, tensor),
    ):
        with pytest.raises(InputError, match=r"w.*has been freed"):
            use()
    assert again.is_live


def test_leaving_the_context_frees_unmaps_and_says_what_was_left(engine):
    with RuntimeContext(engine) as torch:
        torch.zeros(8, 8, dtype="f16", dp=BY_ROW, name="left")
        torch.zeros(4).free()
    (left,) = torch.cleanup_report.freed
    assert (left.name, left.shape, left.dtype, left.sip, left.nbytes) == ("left", (8, 8), "f16", 0, 128)
    assert torch.cleanup_report.leaked == ()
    assert str(torch.cleanup_report) == "freed at exit: left f16[8, 8] (128 B) on sip0; leaked: nothing"
    assert kinds(engine)[-2:] == ["MmuUnmapMsg"] * 2
    assert not any(allocator.hbm.live for allocator in engine.allocators.values())
    assert not engine.va_allocator(0).space.live


def test_memory_that_no_tensor_has_is_a_leak(engine):
    engine.allocators[0, 0, 1].alloc_hbm(64)
    with RuntimeContext(engine) as torch:
        engine.allocators[1, 1, 2].alloc_hbm(100)
        engine.allocators[0, 0, 0].alloc_tcm(32)
        assert str(torch.cleanup()) == (
            "freed at exit: nothing; leaked: 32 B of sip0.cube0.pe0.tcm, 100 B of sip1.cube1.pe2.hbm"
        )


def test_leaving_waits_for_what_is_under_way(engine):
    with RuntimeContext(engine) as torch:
        tensor = torch.zeros(4)
        work = torch.launch("k", no_kernel, tensor, async_op=True)
        del tensor
    assert work.is_completed()
    assert [each.phase for each in torch.traces] == ["map", "init", "launch", "unmap"]


def test_after_an_error_the_machine_is_left_in_order(engine):
    def program():
        with RuntimeContext(engine) as torch:
            torch.zeros(4, name="w")
            program.torch = torch
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        program()
    assert kinds(engine)[-1] == "MmuUnmapMsg"
    assert [each.name for each in program.torch.cleanup_report.freed] == ["w"]
    assert not any(allocator.hbm.live for allocator in engine.allocators.values())


def test_memory_that_is_full_says_so_and_leaves_nothing(torch, engine):
    with pytest.raises(AllocationError, match="asked for"):
        torch.empty(1 << 40, dtype="i8", dp=BY_ROW)
    assert engine.messages == []
    assert not any(allocator.hbm.live for allocator in engine.allocators.values())


@pytest.mark.parametrize("value", ["x", [1, 2], 1j])
def test_a_fill_value_that_is_no_number_leaves_nothing(torch, engine, value):
    with pytest.raises(InputError, match="fill value"):
        torch.full((2,), value)
    assert engine.messages == []
    assert not engine.allocators[0, 0, 0].hbm.live


def test_two_runs_send_the_same(machine):
    def run():
        engine = FakeEngine(machine)
        with RuntimeContext(engine) as torch:
            tensor = torch.tensor(np.arange(64.0).reshape(8, 8), dp=BY_ROW)
            torch.launch("k", no_kernel, tensor, async_op=True)
            tensor[2:5, 1] = 3
        return torch.traces

    assert run() == run()


def test_synchronize_waits_for_all(torch, engine):
    tensor = torch.zeros(4)
    works = [torch.launch("k", no_kernel, tensor, async_op=True) for _ in range(2)]
    torch.accelerator.synchronize()
    assert all(work.is_completed() for work in works)
