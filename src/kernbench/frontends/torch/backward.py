"""Let what is raised inside PyTorch's backward come out of the call of backward.

PyTorch's engine holds a guard of the device while it carries out a node or a hook of the program. A guard that ends
asks Python for the type of its device. With an exception under way Python returns nothing, and the process would end.
So the guard takes the exception, and the call of backward raises it.
"""

from __future__ import annotations

import ctypes
from functools import wraps
from typing import Any

import torch

from kernbench.frontends.torch.cuda import see_as_program

_raise_pending = ctypes.pythonapi.Py_IsInitialized
"""Any function of Python's C interface: after a call ``ctypes`` raises the exception that is under way."""


class AhbmGuard(torch._C._acc.DeviceGuard):  # noqa: SLF001 - the documented base
    """The guard of device ``ahbm``. It changes nothing: there is no device that a thread could have switched to."""

    __slots__ = ("_taken",)  # in a dictionary Python would look first, which fails while an exception is under way

    def __init__(self) -> None:
        super().__init__()
        self._taken: BaseException | None = None

    def type_(self) -> Any:
        """Return the type of the device, and take the exception that is under way."""
        try:
            _raise_pending()
        except BaseException as error:
            self._taken = self._taken or error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        return torch._C._autograd.DeviceType.PrivateUse1  # noqa: SLF001 - its only name

    def raise_taken(self) -> None:
        """Raise the exception that was taken, if there is one."""
        taken, self._taken = self._taken, None
        if taken is not None:
            raise taken


def install(guard: AhbmGuard) -> None:
    """Raise what ``guard`` takes inside backward when PyTorch's engine is left. "cuda" is the machine there, too."""
    run_backward = torch.autograd._engine_run_backward  # noqa: SLF001

    @wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        guard.raise_taken()
        found, failed = None, None
        try:
            # One thread, as always: the way out of inference mode allows others again.
            with see_as_program(), torch.autograd.set_multithreading_enabled(False):
                found = run_backward(*args, **kwargs)
        except SystemError as error:  # the engine's, which misses the exception
            failed = error
        guard.raise_taken()
        if failed is not None:
            raise failed
        return found

    torch.autograd._engine_run_backward = run  # noqa: SLF001
