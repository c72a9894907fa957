"""Runs a kernel as a greenlet that stops at each request. The only module that knows greenlet for kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.messages.commands import KernelRequest
from kernbench.triton_emu.source import kernel_error, traceback_of_kernel


class KernelRunner:
    """One run of ``function(*args, **kwargs)``, which makes its requests with ``request``.

    Whoever resumes the kernel gets its next request; kernels may thus be run from inside each other. ``inside``: it
    runs now.
    """

    __slots__ = ("_closing", "_function", "_greenlet", "_over", "_resumer", "inside")

    def __init__(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        self._function = partial(function, *args, **kwargs)
        self._greenlet = greenlet(self._run)
        self._resumer = getcurrent()  # where its requests go, and its end
        self._closing = False
        self._over = False
        self.inside = False

    def resume(self, answer: object = None) -> KernelRequest | None:
        """Run the kernel until its next request; None: it has returned. ``answer`` is that to its last request.

        What the kernel raises comes out of here, with a traceback that ends in the kernel.
        """
        if self._resumer is not getcurrent():
            self._come_back_here()
        self.inside = True
        try:
            request: KernelRequest = self._greenlet.switch(answer)
        except Exception as error:
            error.__traceback__ = traceback_of_kernel(error.__traceback__)
            raise
        finally:
            self.inside = False
        return None if self._over else request

    def throw(self, error: Exception) -> KernelRequest | None:
        """Like ``resume``, but the call that the kernel waits in raises ``error``."""
        if self._over:
            return None
        self.inside = True
        self._come_back_here()
        try:
            request: KernelRequest = self._greenlet.throw(error)
        except Exception as failure:
            failure.__traceback__ = traceback_of_kernel(failure.__traceback__)
            raise
        finally:
            self.inside = False
        return None if self._over else request

    def close(self) -> None:
        """End an unfinished kernel: its ``finally`` blocks run, and nothing comes out. Harmless on a finished one."""
        if self._over:
            return
        self._closing = self.inside = True
        self._come_back_here()
        with suppress(Exception):
            self._greenlet.throw(GreenletExit)
        self.inside = False
        self._over = True

    def _run(self, _: object) -> None:
        """What the greenlet does."""
        try:
            self._function()
        finally:
            self._over = True

    def _come_back_here(self) -> None:
        """Requests go to whoever resumes, who need not be the one who resumed before."""
        self._resumer = self._greenlet.parent = getcurrent()

    def request(self, request: KernelRequest) -> object:
        """From inside the kernel: hand ``request`` over, stop until resumed, return the answer.

        KernelError from anywhere else.
        """
        if not self.inside:
            self.check()
        if self._closing:
            raise GreenletExit
        return self._resumer.switch(request)

    def check(self) -> None:
        """KernelError unless the caller runs inside the kernel."""
        if self.inside:
            return
        if self._over:
            raise kernel_error("this tl belongs to a kernel that has ended")
        raise kernel_error("tl is used outside its kernel: it and its handles are for the kernel that was given it")
