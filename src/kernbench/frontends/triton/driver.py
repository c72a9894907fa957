"""Triton's driver interface: the device, its properties, and the measurement of time."""

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
        """Return the current SIP's properties. Multiprocessors are PEs that store tensors, and shared memory is TCM."""
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
    """The driver that programs see as ``triton.runtime.driver.active``."""

    utils = Utils()

    @staticmethod
    def is_active() -> bool:
        """Return True, so that a search for a driver selects this class."""
        return True

    def get_current_target(self) -> Any:
        """Return a target that is never compiled for. It is a CUDA target if the program uses the name "cuda"."""
        context = current_context()
        if context is None or not context.frontends.torch.as_cuda:
            return GPUTarget(DEVICE, "pe", WARP_SIZE)
        major, minor = context.frontends.triton.capability_numbers
        return GPUTarget("cuda", 10 * major + minor, WARP_SIZE)

    def get_current_device(self) -> int:
        """Return the index of the SIP on which new tensors are placed."""
        return context_of("get_current_device").devices.current

    def set_current_device(self, device: int) -> None:
        """Make a SIP the current one."""
        context_of("set_current_device").ahbm.set_device(device)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Return the compute capability (major, minor) that ``--set triton.capability`` configures."""
        return context_of("get_device_capability").frontends.triton.capability_numbers

    def get_current_stream(self, device: int = 0) -> int:
        """Return 0, the only stream."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Return the machine as a PyTorch device. Raises ImportError without kernbench's extra for PyTorch."""
        importlib.import_module("kernbench.frontends.torch.installed")
        as_cuda = context_of("get_active_torch_device").frontends.torch.as_cuda
        return importlib.import_module("torch").device("cuda" if as_cuda else DEVICE, self.get_current_device())

    def get_device_interface(self) -> Any:
        """Return the device module, which mirrors ``torch.cuda``."""
        return importlib.import_module("torch").get_device_module(self.get_active_torch_device())

    def get_empty_cache_for_benchmark(self) -> None:
        """Do nothing: the machine has no cache that a benchmark would have to flush."""

    def clear_cache(self, cache: object) -> None:
        """Do nothing: the machine has no cache that a benchmark would have to flush."""

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return ``do_bench``, which measures simulated time."""
        return do_bench


@value
class CompiledKernel:
    """The result of a launch and of ``kernel.warmup``. ``compiled[grid](...)`` launches the kernel."""

    kernel: Any
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
        return str(self.kernel.__name__)

    @property
    def n_regs(self) -> int:
        """Return the registers per thread: all registers of a PE, divided by the threads that the launch requests."""
        return REGISTERS // (WARP_SIZE * int(self.options.get("num_warps", 4)))

    @property
    def n_spills(self) -> int:
        """Return 0: no register is spilled."""
        return 0

    @property
    def metadata(self) -> SimpleNamespace:
        """Return ``shared``, the bytes of TCM of a PE, and ``num_warps``, as requested."""
        spec = context_of("metadata").topology
        return SimpleNamespace(shared=spec.pe.tcm.bytes, num_warps=int(self.options.get("num_warps", 4)))

    @property
    def asm(self) -> NoReturn:
        """Refuse: a kernel is not compiled."""
        raise InputError(f"the code of kernel {self.name!r}: there is none, a PE takes its commands as they come")

    def _init_handles(self) -> None:
        """Do nothing. Programs call it before they read ``n_regs`` and ``n_spills``."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """Return a launcher: ``compiled[grid](*args)`` repeats the launch. Missing arguments keep their last values."""

        def run(*args: object, **kwargs: object) -> None:
            given = self.kernel.arg_names[: len(args)]
            options = {name: value for name, value in self.options.items() if name not in given}
            launch(self.kernel, grid, args, {**options, **kwargs})

        return run


def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> CompiledKernel:
    """Launch ``kernel`` unless ``warmup``. Replaces ``InterpretedFunction.run``."""
    if not warmup:
        launch(kernel, grid, args, kwargs)
    return CompiledKernel(kernel, kwargs)
