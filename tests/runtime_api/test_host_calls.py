"""A kernel that calls what is the host's: an error that names the call, its line and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from machines import run_ranks, working_machine

from kernbench.ccl.install import install_ipcq
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import KernelError
from kernbench.common.program_line import SpawnException
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.context import RuntimeContext

MACHINE = working_machine(2, "sip.cube_mesh.w=1")
Call = Callable[[Any, Any, Any], object]
CALLS: dict[str, Call] = {
    "RuntimeContext.launch": lambda torch, y, tile: torch.launch("again", copy, y),
    "Tensor.numpy": lambda torch, y, tile: y.numpy(),
    "Tensor.item": lambda torch, y, tile: y.item(),
    "Tensor.__getitem__": lambda torch, y, tile: y[0],
    "Tensor.__eq__": lambda torch, y, tile: y == 3,
    "Tensor.__array__": lambda torch, y, tile: np.sum(y),
    "Tensor.copy_": lambda torch, y, tile: y.copy_(tile),
    "Tensor.__setitem__": lambda torch, y, tile: y.__setitem__(0, tile),
    "Tensor.fill_": lambda torch, y, tile: y.fill_(1),
    "Tensor.clone": lambda torch, y, tile: y.clone(),
    "Tensor.free": lambda torch, y, tile: y.free(),
    "TensorFactories.zeros": lambda torch, y, tile: torch.zeros(4),
    "TensorFactories.empty_like": lambda torch, y, tile: torch.empty_like(y),
    "TensorFactories.tensor": lambda torch, y, tile: torch.tensor(tile),
    "TensorFactories.manual_seed": lambda torch, y, tile: torch.manual_seed(1),
    "Distributed.get_rank": lambda torch, y, tile: torch.distributed.get_rank(),
    "Distributed.all_reduce": lambda torch, y, tile: torch.distributed.all_reduce(y),
    "Distributed.send": lambda torch, y, tile: torch.distributed.send(y, 1),
    "Distributed.barrier": lambda torch, y, tile: torch.distributed.barrier(),
    "Distributed.init_process_group": lambda torch, y, tile: torch.distributed.init_process_group("ahbm"),
    "Distributed.cooperative_yield": lambda torch, y, tile: torch.distributed.cooperative_yield(),
    "Multiprocessing.spawn": lambda torch, y, tile: torch.multiprocessing.spawn(print, nprocs=2),
    "Accelerator.synchronize": lambda torch, y, tile: torch.accelerator.synchronize(),
    "Verifier.assert_close": lambda torch, y, tile: torch.testing.assert_close(y, np.ones(1)),
    "RuntimeContext.install_ipcq": lambda torch, y, tile: torch.install_ipcq(),
    "install_ipcq": lambda torch, y, tile: install_ipcq(torch.engine),
    "RuntimeContext.drain": lambda torch, y, tile: torch.drain(),
    "RuntimeContext.cleanup": lambda torch, y, tile: torch.cleanup(),
    "GraphEngine.run_until": lambda torch, y, tile: torch.engine.run_until(1e6),
    "GraphEngine.wait": lambda torch, y, tile: torch.engine.wait(torch.engine.handles[-1]),
    "GraphEngine.abandon": lambda torch, y, tile: torch.engine.abandon(torch.engine.handles),
}


def copy(x: int, *, tl: Any) -> None:
    tl.store(x, tl.load(x, (1,), "f32"))


def calling(torch: Any, call: Call) -> None:
    """Launch a kernel that makes the call on one of two PEs, while the other works."""
    x, y = torch.ones(2, 1, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)), torch.ones(1)

    def kernel(x: int, *, tl: Any) -> None:
        tile = tl.load(x + 4 * tl.program_id(0), (1,), "f32")
        if tl.program_id(0) == 1:
            call(torch, y, tile)
        tl.store(x, tile)

    torch.launch("calls", kernel, x)


def line_of(call: Any) -> int:
    return int(call.__code__.co_firstlineno)


@pytest.mark.parametrize("name", CALLS)
def test_in_a_program_without_ranks(name: str) -> None:
    with RuntimeContext(GraphEngine(MACHINE)) as torch:
        with pytest.raises(KernelError, match="a kernel cannot call") as caught:
            calling(torch, CALLS[name])
        text, (note,) = str(caught.value), caught.value.__notes__
        assert text.startswith(f"{__file__}:{line_of(CALLS[name])}: a kernel cannot call {name} (`")
        assert "before or after it" in text
        assert str(note) == "on sip0.cube0.pe1, kernel 'kernel'"
        z = torch.ones(1)  # and the program goes on
        torch.launch("copy", copy, z)
        assert z.item() == 1
    assert torch.cleanup_report.leaked == ()


@pytest.mark.parametrize("name", ["Tensor.numpy", "Tensor.item", "Tensor.__getitem__"])
def test_of_a_run_without_data_too_it_is_the_call_that_is_told(name: str) -> None:
    """To keep data would not help."""
    told = re.escape(f"a kernel cannot call {name} (`")
    with RuntimeContext(GraphEngine(MACHINE, enable_data=False)) as torch, pytest.raises(KernelError, match=told):
        calling(torch, CALLS[name])


@pytest.mark.parametrize(
    "name", ["RuntimeContext.launch", "Tensor.numpy", "Distributed.barrier", "Distributed.get_rank"]
)
def test_in_ranks(name: str) -> None:
    with RuntimeContext(GraphEngine(MACHINE)) as torch:
        with pytest.raises(SpawnException) as caught:
            run_ranks(torch, lambda rank: calling(torch, CALLS[name]))
        for rank, error in caught.value.errors.items():
            assert isinstance(error, KernelError)
            assert str(error).startswith(f"{__file__}:{line_of(CALLS[name])}: a kernel cannot call {name} (`")
            assert str(error.__notes__[0]).startswith(f"on sip{rank}.cube0.pe1")


def test_in_work_that_a_read_waits_for() -> None:
    """The host is in the middle of another wait, which gets the error of the kernel."""

    def program(torch: Any) -> None:
        x, y = torch.ones(1), torch.ones(1)

        def kernel(x: int, *, tl: Any) -> None:
            tl.load(x, (1,), "f32")
            x.numpy() if tl.program_id(0) else y.numpy()

        torch.launch("calls", kernel, x, async_op=True)
        x.numpy()

    found = run_bench(topology=MACHINE, bench_fn=program)
    with pytest.raises(KernelError, match=r"a kernel cannot call Tensor\.numpy \(`x\.numpy\(\) if"):
        found.raise_for_status()
    assert found.place is not None
    assert found.place.pe == (0, 0, 0)


def test_in_the_mock() -> None:
    with RuntimeContext(GraphEngine(MACHINE)) as torch:
        y = torch.ones(1)

        def kernel(x: int, *, tl: Any) -> None:
            y.numpy()

        with pytest.raises(KernelError, match=r"a kernel cannot call Tensor\.numpy"):
            run_kernel_in_mock(kernel, 1, "none", [np.ones(1, np.float32)])


def test_looking_is_no_call() -> None:
    """What a debugger shows takes no time and changes nothing."""
    with RuntimeContext(GraphEngine(MACHINE)) as torch:
        x, seen = torch.ones(1), []

        def kernel(address: int, *, tl: Any) -> None:
            tl.store(address, tl.load(address, (1,), "f32") * 2)
            seen.append(repr(x))

        torch.launch("looks", kernel, x)
    assert "shape=(1,)" in seen[0]
