"""Execution of a kernel as a greenlet that stops at each request; the only module that uses greenlets for kernels."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from contextvars import Context
from typing import Any, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.common.errors import KernelError, RunError, close_to, exit_error
from kernbench.common.program_line import describe_call
from kernbench.messages.commands import KernelRequest
from kernbench.triton_emu.source import PROGRAM_FILE, kernel_error, kernel_source, traceback_of_kernel


class _KernelGreenlet(greenlet):
    """The greenlet of a kernel; its class marks calls that come from a kernel."""


def check_host_calls() -> None:
    """Raise KernelError, which names the call, if a kernel calls a function of the host's program."""
    if isinstance(getcurrent(), _KernelGreenlet):
        called, where = describe_call()
        raise KernelError(
            f"{where}a kernel cannot call {called}: launches, tensors of the host and collectives are for the host's "
            f"program, which waits while kernels run. In a kernel tl.load and tl.store access memory, tl.value returns "
            f"a number to branch on, tl.send and tl.recv reach other PEs. Pass values of the host as arguments of the "
            f"launch; do all other work before or after it"
        )


class KernelRunner:
    """One run of ``function(*args, **kwargs)``. The function makes its requests by calling ``request`` of this
    object.

    A request goes to the caller of ``resume``, so one kernel can run inside another. ``inside`` is True while the
    kernel runs; a caller that has checked ``inside`` may call ``hand_over`` in place of ``request``. ``kwargs`` are
    read at the start. ``file`` is the source file of the user's program if a front end runs it.

    The kernel itself is the greenlet, without a wrapper, because every switch copies the stack from the greenlet on.
    """

    __slots__ = (
        "_args",
        "_closing",
        "_continue",
        "_file",
        "_function",
        "_greenlet",
        "_kwargs",
        "_resumer",
        "hand_over",
        "inside",
    )

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        file: str | None = None,
    ) -> None:
        self._function = function
        self._file = file
        self._args = args
        self._kwargs = kwargs
        self._greenlet = _KernelGreenlet(function)
        if file is not None:
            self._greenlet.gr_context = context = Context()
            context.run(PROGRAM_FILE.set, file)
        self._resumer = getcurrent()  # the receiver of its requests and of its end
        self.hand_over: Callable[[KernelRequest], object] = self._resumer.switch
        self._continue: Callable[[Any], Any] = self._begin
        self._closing = False
        self.inside = False

    def resume(self, answer: object = None) -> KernelRequest | None:
        """Run the kernel until its next request and return the request; None means that the kernel has returned.

        ``answer`` answers the last request. Errors of the kernel are raised with a traceback that ends in the kernel.
        ``sys.exit`` is raised as ProgramExitError, other exits except Ctrl-C as RunError.
        """
        if self._resumer is not getcurrent():
            self._set_resumer()
        proceed = self._continue
        self.inside = True
        try:
            request: KernelRequest = proceed(answer)
        except Exception as error:
            error.__traceback__ = traceback_of_kernel(error.__traceback__, self._file)
            _suggest_name(error)
            if error.__traceback__ is None and isinstance(error, TypeError):  # the call itself failed
                raise KernelError(f"{kernel_source(self._function)}: {error}") from None
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as leaving:
            raise _make_exit_error(leaving) from None
        finally:
            self.inside = False
        # A dead greenlet returns the kernel's return value, or the answer that it cannot receive.
        return request if self._greenlet else None

    def _begin(self, _: object) -> Any:
        """Run the kernel until its first request, or to its end."""
        if self._closing:
            return None
        self._continue = self._greenlet.switch
        first = self._greenlet.switch(*self._args, **self._kwargs)
        if isinstance(first, Generator | Coroutine):
            first.close()
            place = kernel_source(self._function)
            raise KernelError(f"{place}: the kernel did not run: a kernel is a function without yield or await")
        return first

    def throw(self, error: Exception) -> KernelRequest | None:
        """Resume the kernel with ``error`` raised at its last request."""
        kernel = self._greenlet
        if kernel.dead:
            return None
        self._continue = kernel.throw
        try:
            return self.resume(error)
        finally:
            self._continue = kernel.switch

    def close(self) -> None:
        """End an unfinished kernel: its ``finally`` blocks run, and its errors are dropped.

        A finished kernel is unaffected.
        """
        if self._greenlet.dead:
            return
        self._closing = self.inside = True
        self._set_resumer()
        self.hand_over = _leave
        try:
            self._greenlet.throw(GreenletExit)
        except KeyboardInterrupt:
            raise
        except BaseException:  # errors of a kernel that is being ended
            pass
        finally:
            self.inside = False

    def _set_resumer(self) -> None:
        """Send requests to the current greenlet, which may differ from the previous resumer."""
        here = self._greenlet.parent = getcurrent()  # ValueError if that is the kernel itself
        self._resumer = here
        self.hand_over = here.switch

    def request(self, request: KernelRequest) -> object:
        """Hand ``request`` over from inside the kernel, stop until resumed, and return the answer.

        Raises KernelError outside the kernel.
        """
        if not self.inside:
            self.check()
        return self.hand_over(request)

    def check(self) -> None:
        """Raise KernelError unless the caller runs inside the kernel."""
        if self.inside:
            return
        if self._greenlet.dead:
            raise kernel_error("this tl belongs to a kernel that has ended")
        raise kernel_error("tl is used outside its kernel: tl and its handles belong to the kernel that received them")


def _suggest_name(error: Exception) -> None:
    """Add the closest existing name to an AttributeError of the kernel: ``tl.lod`` may be ``tl.load``.

    ``tl`` does not do this itself: a class with ``__getattr__`` takes three times as long to look up existing names.
    """
    if not isinstance(error, AttributeError) or error.name is None:
        return
    with suppress(Exception):  # names of a user's object may be anything
        hint = close_to(error.name, (name for name in dir(error.obj) if not name.startswith("_")))
        if hint:
            error.args = (f"{error}; {hint.rstrip()}",)


def _make_exit_error(leaving: BaseException) -> RunError:
    """Return the error for ``sys.exit``, or another exit without an error, that has left the kernel."""
    return exit_error(leaving).with_traceback(traceback_of_kernel(leaving.__traceback__))


def _leave(_: KernelRequest) -> NoReturn:
    """At the next request of a kernel that is being closed, end the kernel."""
    raise GreenletExit
