"""Exceptions inside PyTorch's backward: raise them from the call of backward.

PyTorch's engine holds a device guard while it runs a node or a hook of the program. At the end, the engine calls the
guard's Python method for the device type. If an exception were pending then, the call would return nothing, and the
process would end. The method therefore stores the exception, and the call of backward raises it.
"""

from __future__ import annotations

import ctypes
from functools import wraps
from typing import Any

import torch
from torch.autograd import graph

from kernbench.frontends.torch.cuda import see_as_program
from kernbench.frontends.torch.tensor import replace

_raise_pending = ctypes.pythonapi.Py_IsInitialized
"""Any function of Python's C interface: after its call, ``ctypes`` raises a pending exception."""


class AhbmGuard(torch._C._acc.DeviceGuard):  # noqa: SLF001 - the documented base
    """The guard of device ``ahbm``. It switches no device, because no thread has a current device of its own."""

    __slots__ = ("_taken",)  # a lookup in a dictionary would fail while an exception is pending

    def __init__(self) -> None:
        super().__init__()
        self._taken: BaseException | None = None

    def type_(self) -> Any:
        """Return the type of the device. Store a pending exception for `raise_taken`."""
        try:
            _raise_pending()
        except BaseException as error:
            self._taken = self._taken or error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        return torch._C._autograd.DeviceType.PrivateUse1  # noqa: SLF001 - its only name

    def raise_taken(self) -> None:
        """Raise the stored exception, if there is one, and forget it."""
        taken, self._taken = self._taken, None
        if taken is not None:
            raise taken


def install(guard: AhbmGuard) -> None:
    """Make backward raise the exception that ``guard`` stored. In hooks of the program, "cuda" means the machine."""
    run_backward = graph._engine_run_backward  # noqa: SLF001

    @wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        guard.raise_taken()
        found, failed = None, None
        try:
            # The simulation needs one thread. Leaving inference mode would let the engine use several.
            with see_as_program(), torch.autograd.set_multithreading_enabled(False):
                found = run_backward(*args, **kwargs)
        except SystemError as error:  # from the engine, since the guard has stored the exception
            failed = error
        guard.raise_taken()
        if failed is not None:
            raise failed
        return found

    replace(torch.autograd, "_engine_run_backward", run)
