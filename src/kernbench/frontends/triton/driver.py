"""GPU libraries that host programs of Triton use: the driver, the profiler proton, and cuBLAS."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NoReturn

from triton.backends.compiler import GPUTarget

from kernbench.common.errors import InputError
from kernbench.frontends.gpu import DEVICE, REGISTERS, WARP_SIZE, device_properties
from kernbench.frontends.triton.launch import context_of
from kernbench.frontends.triton.reports import do_bench
from kernbench.runtime_api.context import current_context

if TYPE_CHECKING:
    import torch

# -- The driver -------------------------------------------------------------------------------------------------------


class Utils:
    """The object that programs use as ``driver.active.utils``."""

    @staticmethod
    def get_device_properties(device: int = 0) -> dict[str, int]:  # noqa: ARG004 - all SIPs are alike
        """Return the current SIP's properties. Multiprocessors are PEs that store tensors, and shared memory is TCM."""
        context = context_of("get_device_properties")
        properties = device_properties(context, context.devices.current)
        return {
            "multiprocessor_count": properties.multi_processor_count,
            "max_shared_mem": properties.shared_memory_per_block,
            "max_num_regs": REGISTERS,
            "warpSize": WARP_SIZE,
            "sm_clock_rate": properties.clock_rate,
            "mem_clock_rate": properties.memory_clock_rate,
            "mem_bus_width": properties.memory_bus_width,
        }


class TritonDriver:
    """The driver that programs see as ``triton.runtime.driver.active``."""

    utils = Utils()

    @staticmethod
    def is_active() -> bool:
        """Return True, so that a search for a driver selects this class."""
        return True

    def get_current_target(self) -> GPUTarget:
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

    def get_active_torch_device(self) -> torch.device:
        """Return the machine as a PyTorch device. Raises ImportError without kernbench's extra for PyTorch."""
        importlib.import_module("kernbench.frontends.torch.installed")
        as_cuda = context_of("get_active_torch_device").frontends.torch.as_cuda
        return importlib.import_module("torch").device("cuda" if as_cuda else DEVICE, self.get_current_device())

    def get_device_interface(self) -> ModuleType:
        """Return the device module, which mirrors ``torch.cuda``."""
        return importlib.import_module("torch").get_device_module(self.get_active_torch_device())

    def get_empty_cache_for_benchmark(self) -> None:
        """Do nothing: the machine has no cache that a benchmark would have to flush."""

    def clear_cache(self, cache: object) -> None:
        """Do nothing: the machine has no cache that a benchmark would have to flush."""

    def get_benchmarker(self) -> Callable[..., float | list[float]]:
        """Return ``do_bench``, which measures simulated time."""
        return do_bench


# -- proton and cuBLAS ------------------------------------------------------------------------------------------------

_ADVICE = "--explain and --trace say where the time went"


def _start(name: object = None, **_: object) -> None:  # noqa: ARG001
    """Print that the machine does not record profiles. Replaces ``triton.profiler.start``."""
    print(f"triton.profiler: proton reads counters of a GPU, and records nothing here; {_ADVICE}")


def _do_nothing(*_: object, **__: object) -> None:
    """Do nothing. Replaces the functions that continue or end a recording."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise InputError(f"triton.profiler.viewer: proton has recorded nothing here that could be shown; {_ADVICE}")


PROTON = MappingProxyType(
    {"start": _start, "activate": _do_nothing, "deactivate": _do_nothing, "finalize": _do_nothing}
)


class BlasLt:
    """``CublasLt`` and ``HipblasLt``: products of PyTorch tensors, computed as in PyTorch itself."""

    def __init__(self, workspace: object) -> None: ...

    def matmul(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Store the product of ``a`` and the transpose of ``b`` in ``c``."""
        c.copy_(_wide(a) @ _wide(b).T)

    def gemm(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, alpha: float, beta: float
    ) -> None:
        """Store ``alpha`` times the product of ``a`` and the transpose of ``b``, plus ``beta * c``, in ``d``."""
        d.copy_(alpha * (_wide(a) @ _wide(b).T) + beta * c)

    def block_scaled_matmul_mxfp8(self, *_: object) -> None:
        """Refuse: the machine has no scaled factors."""
        raise InputError("block_scaled_matmul_mxfp8: the machine multiplies no block-scaled matrices")

    def block_scaled_matmul_nvfp4(self, *_: object) -> None:
        """Refuse: the machine has no scaled factors."""
        raise InputError("block_scaled_matmul_nvfp4: the machine multiplies no block-scaled matrices")


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.element_size() == 1 else x


def install_libraries(profiler: ModuleType, nvidia: ModuleType, amd: ModuleType) -> None:
    """Replace the functions in ``triton.profiler`` and the classes in Triton's modules of GPU vendors."""
    for module in (profiler, sys.modules[profiler.start.__module__]):
        for name, function in PROTON.items():
            setattr(module, name, function)
    viewer = ModuleType(f"{profiler.__name__}.viewer")
    viewer.parse = viewer.read = viewer.print_tree = _refuse  # type: ignore[attr-defined]
    sys.modules[viewer.__name__] = profiler.viewer = viewer  # type: ignore[attr-defined]
    nvidia.cublas.CublasLt = amd.hipblas.HipblasLt = BlasLt
