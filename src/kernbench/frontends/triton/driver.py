"""Answer for Triton's driver: the device, its figures, and how long something takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

from triton.backends.compiler import GPUTarget

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE, REGISTERS, WARP_SIZE, device_properties
from kernbench.frontends.triton.launch import context_of, launch
from kernbench.frontends.triton.reports import do_bench
from kernbench.runtime_api.context import current_context


class Utils:
    """The object that programs use as ``driver.active.utils``."""

    @staticmethod
    def get_device_properties(device: int = 0) -> dict[str, int]:  # noqa: ARG004 - all SIPs are alike
        """The multiprocessors are the PEs that a tensor of PyTorch spreads over, their TCM is the shared memory."""
        context = context_of("get_device_properties")
        found = device_properties(context, context.devices.current)
        return {
            "multiprocessor_count": found.multi_processor_count,
            "max_shared_mem": found.shared_memory_per_block,
            "max_num_regs": REGISTERS,
            "warpSize": WARP_SIZE,
            "sm_clock_rate": found.clock_rate,
            "mem_clock_rate": found.memory_clock_rate,
            "mem_bus_width": found.memory_bus_width,
        }


class TritonDriver:
    """``triton.runtime.driver.active``."""

    utils = Utils()

    @staticmethod
    def is_active() -> bool:
        """Tell who looks for a driver that there is this one."""
        return True

    def get_current_target(self) -> Any:
        """The machine, as a target that nothing compiles for; in a program that means it by "cuda" one of CUDA."""
        context = current_context()
        if context is None or not context.frontends.torch.as_cuda:
            return GPUTarget(DEVICE, "pe", WARP_SIZE)
        major, minor = context.frontends.triton.capability_numbers
        return GPUTarget("cuda", 10 * major + minor, WARP_SIZE)

    def get_current_device(self) -> int:
        """The SIP that tensors are made on."""
        return context_of("get_current_device").devices.current

    def set_current_device(self, device: int) -> None:
        """Make a SIP the current one."""
        context_of("set_current_device").ahbm.set_device(device)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """The compute capability that --set triton.capability says."""
        return context_of("get_device_capability").frontends.triton.capability_numbers

    def get_current_stream(self, device: int = 0) -> int:
        """The only one there is."""
        return 0

    def get_active_torch_device(self) -> Any:
        """The machine, as PyTorch's device. ImportError without the extra for PyTorch, which this one does not need."""
        importlib.import_module("kernbench.frontends.torch.installed")
        as_cuda = context_of("get_active_torch_device").frontends.torch.as_cuda
        return importlib.import_module("torch").device("cuda" if as_cuda else DEVICE, self.get_current_device())

    def get_device_interface(self) -> Any:
        """Return the module of the device, after ``torch.cuda``."""
        return importlib.import_module("torch").get_device_module(self.get_active_torch_device())

    def get_empty_cache_for_benchmark(self) -> None:
        """Nothing: the machine has no cache that a benchmark would have to empty."""

    def clear_cache(self, cache: object) -> None:
        """Nothing, for the same reason."""

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return the function that measures."""
        return do_bench


@value
class CompiledKernel:
    """The result of a launch and of ``kernel.warmup``: a kernel that fills its PE. ``compiled[grid](...)`` runs it."""

    kernel: Any
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The kernel's."""
        return str(self.kernel.__name__)

    @property
    def n_regs(self) -> int:
        """Registers of a thread: all there are."""
        return REGISTERS // (WARP_SIZE * int(self.options.get("num_warps", 4)))

    @property
    def n_spills(self) -> int:
        """None spill."""
        return 0

    @property
    def metadata(self) -> SimpleNamespace:
        """``shared``: bytes of TCM, all of it; ``num_warps``: as asked for."""
        spec = context_of("metadata").topology
        return SimpleNamespace(shared=spec.pe.tcm.bytes, num_warps=int(self.options.get("num_warps", 4)))

    @property
    def asm(self) -> NoReturn:
        """Refuse: nothing is compiled."""
        raise InputError(f"the code of kernel {self.name!r}: there is none, a PE takes its commands as they come")

    def _init_handles(self) -> None:
        """Do nothing; programs call it before they look at the figures."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """``compiled[grid](*args)``: what is not given is as it was before."""

        def run(*args: object, **kwargs: object) -> None:
            given = self.kernel.arg_names[: len(args)]
            options = {name: value for name, value in self.options.items() if name not in given}
            launch(self.kernel, grid, args, {**options, **kwargs})

        return run


def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> CompiledKernel:
    """In place of ``InterpretedFunction.run``."""
    if not warmup:
        launch(kernel, grid, args, kwargs)
    return CompiledKernel(kernel, kwargs)
