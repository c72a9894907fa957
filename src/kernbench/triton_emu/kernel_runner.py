"""Runs a kernel as a greenlet that stops at each request. The only module that knows greenlet for kernels."""

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
    """A kernel, so that whoever is called can tell that it is one who calls."""


def check_host_calls() -> None:
    """KernelError when it is a kernel that has called into what only the host's program can do; it names the call."""
    if isinstance(getcurrent(), _KernelGreenlet):
        called, where = describe_call()
        raise KernelError(
            f"{where}a kernel cannot call {called}: launches, tensors of the host and collectives are for the host's "
            f"program, which waits while kernels run. In a kernel tl.load and tl.store reach memory, tl.value gives a "
            f"number to branch on, tl.send and tl.recv reach other PEs. What the host knows comes as an argument of a "
            f"launch; the rest is done before or after it"
        )


class KernelRunner:
    """One run of ``function(*args, **kwargs)``, which makes its requests with ``request``.

    Whoever resumes the kernel gets its next request; kernels may thus be run from inside each other. ``inside``: it
    runs now; who knows that may make requests with ``hand_over``. ``kwargs`` are looked at when it begins. ``file``:
    the source of the program that the function, a front end's, runs.

    The kernel is the greenlet, with nothing around it: every switch copies what lies on the stack from there on.
    """

    __slots__ = (
        "_args",
        "_closing",
        "_file",
        "_function",
        "_go_on",
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
        self._resumer = getcurrent()  # where its requests go, and its end
        self.hand_over: Callable[[KernelRequest], object] = self._resumer.switch
        self._go_on: Callable[[object], Any] = self._begin
        self._closing = False
        self.inside = False

    def resume(self, answer: object = None) -> KernelRequest | None:
        """Run the kernel until its next request; None: it has returned. ``answer`` is that to its last request.

        What the kernel raises comes out of here, with a traceback that ends in the kernel; ``sys.exit`` as
        ProgramExitError, whatever else is no error, but Ctrl-C, as RunError.
        """
        if self._resumer is not getcurrent():
            self._come_back_here()
        go_on = self._go_on
        self.inside = True
        try:
            request: KernelRequest = go_on(answer)
        except Exception as error:
            error.__traceback__ = traceback_of_kernel(error.__traceback__, self._file)
            _suggest_name(error)
            if error.__traceback__ is None and isinstance(error, TypeError):  # it could not even be called
                raise KernelError(f"{kernel_source(self._function)}: {error}") from None
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as leaving:
            raise _make_exit_error(leaving) from None
        finally:
            self.inside = False
        # What a dead greenlet hands over is the kernel's return value, or the answer that it cannot take.
        return request if self._greenlet else None

    def _begin(self, _: object) -> Any:
        """Run the kernel until its first request; or it returns at once what is no request."""
        if self._closing:
            return None
        self._go_on = self._greenlet.switch
        first = self._greenlet.switch(*self._args, **self._kwargs)
        if isinstance(first, Generator | Coroutine):
            first.close()
            place = kernel_source(self._function)
            raise KernelError(f"{place}: the kernel did not run: a kernel is a function without yield or await")
        return first

    def throw(self, error: Exception) -> KernelRequest | None:
        """Like ``resume``, but the call that the kernel waits in raises ``error``."""
        kernel = self._greenlet
        if kernel.dead:
            return None
        self._go_on = kernel.switch
        self.inside = True
        self._come_back_here()
        try:
            request: KernelRequest = kernel.throw(error)
        except Exception as failure:
            failure.__traceback__ = traceback_of_kernel(failure.__traceback__, self._file)
            _suggest_name(failure)
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as leaving:
            raise _make_exit_error(leaving) from None
        finally:
            self.inside = False
        # What a dead greenlet hands over is the kernel's return value, or the answer that it cannot take.
        return request if kernel else None

    def close(self) -> None:
        """End an unfinished kernel: its ``finally`` blocks run, and nothing comes out. Harmless on a finished one."""
        if self._greenlet.dead:
            return
        self._closing = self.inside = True
        self._come_back_here()
        self.hand_over = _leave
        try:
            self._greenlet.throw(GreenletExit)
        except KeyboardInterrupt:
            raise
        except BaseException:  # what a kernel raises because it was ended
            pass
        finally:
            self.inside = False

    def _come_back_here(self) -> None:
        """Requests go to whoever resumes, who need not be the one who resumed before."""
        here = self._greenlet.parent = getcurrent()  # ValueError if that is the kernel itself
        self._resumer = here
        self.hand_over = here.switch

    def request(self, request: KernelRequest) -> object:
        """Hand ``request`` over from inside the kernel, stop until resumed, and return the answer.

        KernelError from anywhere else.
        """
        if not self.inside:
            self.check()
        return self.hand_over(request)

    def check(self) -> None:
        """KernelError unless the caller runs inside the kernel."""
        if self.inside:
            return
        if self._greenlet.dead:
            raise kernel_error("this tl belongs to a kernel that has ended")
        raise kernel_error("tl is used outside its kernel: it and its handles are for the kernel that was given it")


def _suggest_name(error: Exception) -> None:
    """Add to an AttributeError of the kernel the nearest name that there is: ``tl.lod`` may be ``tl.load``.

    Not by ``tl`` itself: a class with ``__getattr__`` takes three times as long to look up the names that it has.
    """
    if not isinstance(error, AttributeError) or error.name is None:
        return
    with suppress(Exception):  # an object of the user's may say anything of its names
        hint = close_to(error.name, (name for name in dir(error.obj) if not name.startswith("_")))
        if hint:
            error.args = (f"{error}; {hint.rstrip()}",)


def _make_exit_error(leaving: BaseException) -> RunError:
    """Note that ``sys.exit``, or another exit that is no error, has left the kernel."""
    return exit_error(leaving).with_traceback(traceback_of_kernel(leaving.__traceback__))


def _leave(_: KernelRequest) -> NoReturn:
    """End a kernel that is closed at its next request."""
    raise GreenletExit
