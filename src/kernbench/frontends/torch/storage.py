"""Storage of PyTorch tensors: one-dimensional tensors of the machine, reused once the program drops them."""

from __future__ import annotations

from threading import current_thread, main_thread
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import torch

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64, DType
from kernbench.common.errors import InputError, NoMachineError
from kernbench.frontends.torch.pool import pool_of
from kernbench.runtime_api.context import RuntimeContext, current_context
from kernbench.triton_emu.kernel_runner import check_host_calls

TorchTensor: TypeAlias = Any
TorchType: TypeAlias = Any
MACHINE_TYPES: dict[TorchType, DType] = {
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: F8E4M3,
    torch.float8_e5m2: F8E5M2,
    torch.int32: I32,
    torch.int64: I64,
    torch.int16: I16,
    torch.int8: I8,
    torch.uint8: U8,
    torch.uint16: U16,
    torch.uint32: U32,
    torch.uint64: U64,
    torch.bool: I8,
}
"""The machine's type for each PyTorch type; a bool is stored as a byte of 0 or 1."""
# Integer types of the same width as types that NumPy lacks or that the machine names differently.
_BITS = {
    torch.bfloat16: (torch.int16, np.int16),
    torch.float8_e4m3fn: (torch.int8, np.int8),
    torch.float8_e5m2: (torch.int8, np.int8),
    torch.bool: (torch.int8, np.int8),
}


def machine_bits(flat: TorchTensor) -> Any:
    """Return the elements of a host tensor as an array of the machine's type."""
    bits = _BITS.get(flat.dtype)
    return flat.numpy() if bits is None else flat.view(bits[0]).numpy().view(machine_type(flat.dtype).numpy)


KNOWN_BYTES = 1 << 20
"""Maximum bytes of an integer tensor whose values a run without data stores, such as ids, tables or routing."""


class UnknownTypeError(InputError):
    """A PyTorch type that the machine does not have."""


def machine_type(ty: TorchType) -> DType:
    """Return the machine's type for a PyTorch type. Raises UnknownTypeError if it has none."""
    found = MACHINE_TYPES.get(ty)
    if found is None:
        raise UnknownTypeError(f"{ty} on ahbm: the machine has {', '.join(str(each) for each in MACHINE_TYPES)}")
    return found


def current() -> RuntimeContext[Any]:
    """Return the context of the running program. Raises NoMachineError without one, and KernelError in a kernel."""
    check_host_calls()
    found = current_context()
    if found is None:
        thread = current_thread()
        if thread is not main_thread():
            raise NoMachineError(
                f"device ahbm: thread {thread.name!r} has no machine; the thread that runs the program has it, if any"
            )
        raise NoMachineError(
            "device ahbm: there is no machine; kernbench run --script FILE, or --bench FILE, gives one"
        )
    return found


class Storage:
    """``n`` contiguous elements of a type, sharded over PEs of a SIP.

    ``inference``: True if it was created in inference mode. Its views are then not part of an autograd graph.
    """

    __slots__ = ("__weakref__", "dtype", "inference", "n", "tensor")

    def __init__(self, n: int, dtype: TorchType, sip: int) -> None:
        self.n, self.dtype = max(n, 1), dtype
        self.inference = torch.is_inference_mode_enabled()
        pool = pool_of(current())
        self.tensor = pool.take(self.n, machine_type(dtype), sip)
        finalize(self, pool.give, self.tensor).atexit = False

    def read(self, first: int, end: int, index: Any = ...) -> TorchTensor:
        """Transfer elements ``first`` to ``end - 1`` to the host, or those of them that ``index`` selects.

        Raises NoDataError if the run lacks their values.
        """
        if self._known() is None:
            return self._on_host(self.tensor.fetch(first, end, index))
        return self.fetch(first, end, index)[0]

    def fetch(self, first: int, end: int, index: Any = ...) -> tuple[TorchTensor, bool]:
        """Transfer elements to the host for an operator: return (elements, True), or (zeros, False) for unknown values.

        Unlike `read`, it does not show values to the program, so a run without data can use zeros.
        """
        found, known = self.tensor.pass_on(first, end, index), self._known()
        if found is None and known is not None:
            found = known[first:end]
        if found is None:
            return torch.zeros(end - first, dtype=self.dtype), False
        return self._on_host(found), True

    def _known(self) -> np.ndarray[Any, Any] | None:
        context = current()
        return None if context.has_data else context.known_values.of(self.tensor)

    def known(self) -> TorchTensor | None:
        """Return the values of all elements if a run without data knows them, else None."""
        found = self._known()
        return None if found is None else self._on_host(found)

    def put_known(self, flat: TorchTensor) -> None:
        """In a run without data, store the values ``flat`` of all elements, which are then known."""
        current().known_values.put(self.tensor, 0, machine_bits(flat))

    def look(self) -> TorchTensor:
        """Return all elements, in no simulated time, for observers."""
        return self._on_host(self.tensor.peek())

    def write(self, first: int, flat: TorchTensor, *, is_known: bool = True) -> None:
        """Transfer ``flat`` from the host to the elements from ``first`` on. ``is_known``: ``flat`` has real values."""
        array = machine_bits(flat)
        if len(array) == self.n:
            self.tensor.copy_(array)
        else:
            self.tensor[first : first + len(array)] = array
        context = current()
        if not is_known:
            context.known_values.forget(self.tensor)
        elif not context.has_data and not self.dtype.is_floating_point and self.tensor.nbytes <= KNOWN_BYTES:
            context.known_values.put(self.tensor, first, array)

    def _on_host(self, array: np.ndarray[Any, Any]) -> TorchTensor:
        bits = _BITS.get(self.dtype)
        if bits is None:
            return torch.from_numpy(np.array(array)).to(self.dtype)
        return torch.from_numpy(np.array(array.view(bits[1]))).view(self.dtype)
