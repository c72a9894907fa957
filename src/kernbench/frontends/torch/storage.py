"""The bytes of PyTorch's tensors: tensors of the machine with one axis, which are used again when Python drops them."""

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
"""How each type lies on the machine; bool as bytes that are 0 or 1."""
# Whole numbers with the bits of types that PyTorch gives NumPy only so, or that the machine knows by other names.
_BITS = {
    torch.bfloat16: (torch.int16, np.int16),
    torch.float8_e4m3fn: (torch.int8, np.int8),
    torch.float8_e5m2: (torch.int8, np.int8),
    torch.bool: (torch.int8, np.int8),
}


def machine_bits(flat: TorchTensor) -> Any:
    """Return the elements of a tensor of the host in the machine's type for them."""
    bits = _BITS.get(flat.dtype)
    return flat.numpy() if bits is None else flat.view(bits[0]).numpy().view(machine_type(flat.dtype).numpy)


KNOWN_BYTES = 1 << 20
"""Tensors of whole numbers up to this size keep their values in a run without data: ids, tables, routing"""


class UnknownTypeError(InputError):
    """A type of PyTorch that the machine does not have."""


def machine_type(ty: TorchType) -> DType:
    """The machine's type for one of PyTorch's; UnknownTypeError if it has none."""
    found = MACHINE_TYPES.get(ty)
    if found is None:
        raise UnknownTypeError(f"{ty} on ahbm: the machine has {', '.join(str(each) for each in MACHINE_TYPES)}")
    return found


def current() -> RuntimeContext[Any]:
    """The context that the program runs in. NoMachineError outside of one, KernelError when a kernel asks."""
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
    """``n`` elements of a type, one after another, spread over PEs of a SIP.

    ``inference``: made in inference mode, as are all its views, so that they have no part in a graph.
    """

    __slots__ = ("__weakref__", "dtype", "inference", "n", "tensor")

    def __init__(self, n: int, dtype: TorchType, sip: int) -> None:
        self.n, self.dtype = max(n, 1), dtype
        self.inference = torch.is_inference_mode_enabled()
        pool = pool_of(current())
        self.tensor = pool.take(self.n, machine_type(dtype), sip)
        finalize(self, pool.give, self.tensor).atexit = False

    def read(self, first: int, end: int, asked: Any = ...) -> TorchTensor:
        """Elements ``first`` to before ``end`` on the host: a transfer. ``asked``: an index, what is wanted of them.

        NoDataError if the run does not have them.
        """
        if self._known() is None:
            return self._on_host(self.tensor.fetch(first, end, asked))
        return self.fetch(first, end, asked)[0]

    def fetch(self, first: int, end: int, asked: Any = ...) -> tuple[TorchTensor, bool]:
        """The same for operators, which the program does not see into, and whether these are the values.

        Else they are zeros, in a run without data.
        """
        found, known = self.tensor.pass_on(first, end, asked), self._known()
        if found is None and known is not None:
            found = known[first:end]
        if found is None:
            return torch.zeros(end - first, dtype=self.dtype), False
        return self._on_host(found), True

    def _known(self) -> np.ndarray[Any, Any] | None:
        context = current()
        return None if context.has_data else context.known_values.of(self.tensor)

    def known(self) -> TorchTensor | None:
        """Return all elements that a run without data knows; None if it does not know them."""
        found = self._known()
        return None if found is None else self._on_host(found)

    def put_known(self, flat: TorchTensor) -> None:
        """Note all elements, for a run without data."""
        current().known_values.put(self.tensor, 0, machine_bits(flat))

    def look(self) -> TorchTensor:
        """All elements, in no simulated time: for who watches."""
        return self._on_host(self.tensor.peek())

    def write(self, first: int, flat: TorchTensor, *, known: bool = True) -> None:
        """Elements from ``first`` on become ``flat``, of the host: a transfer. ``known``: these are their values."""
        array = machine_bits(flat)
        if len(array) == self.n:
            self.tensor.copy_(array)
        else:
            self.tensor[first : first + len(array)] = array
        context = current()
        if not known:
            context.known_values.forget(self.tensor)
        elif not context.has_data and not self.dtype.is_floating_point and self.tensor.nbytes <= KNOWN_BYTES:
            context.known_values.put(self.tensor, first, array)

    def _on_host(self, array: np.ndarray[Any, Any]) -> TorchTensor:
        bits = _BITS.get(self.dtype)
        if bits is None:
            return torch.from_numpy(np.array(array)).to(self.dtype)
        return torch.from_numpy(np.array(array.view(bits[1]))).view(self.dtype)
