"""The seam between kernels and their PE."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake_pe import TCM_BASE, site_of

from kernbench.common.errors import AddressFaultError, KernelError
from kernbench.messages.commands import Command, Meet
from kernbench.messages.requests import TensorArg
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.kernel_run import KernelRun
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.source import Source, kernel_source


def start(function: Callable[..., object], *args: Any, **kwargs: Any) -> KernelRun:
    return KernelRun(function, args, kwargs, site_of(function), ScratchAllocator(TCM_BASE, 4096))


def last_frame(error: BaseException) -> traceback.FrameSummary:
    return traceback.extract_tb(error.__traceback__)[-1]


def meets(run: KernelRunner, times: int) -> None:
    for line in range(times):
        run.request(Meet(line))


def test_requests_come_out_one_by_one_then_none() -> None:
    runner = KernelRunner(lambda: meets(runner, 2), (), {})
    assert [runner.resume() for _ in range(4)] == [Meet(0), Meet(1), None, None]


def test_arguments_and_return_value_are_the_kernels_own_affair() -> None:
    seen: list[object] = []

    def kernel(a: int, b: int, *, c: int) -> str:
        seen.extend((a, b, c))
        return "ignored"

    assert KernelRunner(kernel, (1, 2), {"c": 3}).resume() is None
    assert seen == [1, 2, 3]


def test_a_kernel_sees_the_address_of_a_tensor() -> None:
    seen: list[object] = []

    def kernel(ptr: int, n: int, tl: Any, name: str) -> None:
        seen.extend((ptr, n, name))

    tensor = TensorArg(name="x", va=0x1000, shape=(4,), dtype=site_of(kernel).dot_dtypes[0], owners=((0, 0, 0),))
    assert start(kernel, tensor, 4, name="a").resume() is None
    assert seen == [0x1000, 4, "a"]


def test_kernels_run_nested_and_interleaved() -> None:
    log: list[str] = []

    def outer() -> None:
        runner_outer.request(Meet(1))
        assert inner_runner.resume() == Meet(10)
        log.append("inner resumed by outer")
        runner_outer.request(Meet(2))

    inner_runner = KernelRunner(lambda: [inner_runner.request(Meet(n)) for n in (9, 10, 11)], (), {})
    runner_outer = KernelRunner(outer, (), {})
    assert inner_runner.resume() == Meet(9)
    assert runner_outer.resume() == Meet(1)
    assert runner_outer.resume() == Meet(2)
    assert inner_runner.resume() == Meet(11)
    assert inner_runner.resume() is None
    assert runner_outer.resume() is None
    assert log == ["inner resumed by outer"]


def test_an_error_of_the_kernel_ends_in_its_line() -> None:
    def kernel(tl: Any) -> None:
        tl.zeros(4, "i8")
        helper(0)

    def helper(n: int) -> float:
        return 1 / n

    run = start(kernel)
    run.resume()
    with pytest.raises(ZeroDivisionError) as caught:
        run.resume()
    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["kernel", "helper"]
    assert run.resume() is None


def test_an_error_of_tl_ends_in_the_kernels_line_and_names_it() -> None:
    def kernel(tl: Any) -> None:
        tl.load(0, 4, "f33")

    line = kernel.__code__.co_firstlineno + 1
    with pytest.raises(KernelError) as caught:
        start(kernel).resume()
    assert str(caught.value).startswith(f"{__file__}:{line}: unknown dtype 'f33'; there are: f32")
    frame = last_frame(caught.value)
    assert (frame.filename, frame.lineno, frame.name) == (__file__, line, "kernel")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda tl: tl.lod(0, 4, "f32"), "'TLContext' object has no attribute 'lod'; did you mean 'load'?"),
        (lambda tl: tl.programid(0), "did you mean 'program_id'?"),
        (lambda tl: tl.atomicadd, "did you mean 'atomic_add'?"),
        (lambda tl: math.sqr(2), "module 'math' has no attribute 'sqr'; did you mean 'sqrt'?"),
    ],
)
def test_a_name_that_tl_does_not_have(program: Callable[[Any], object], said: str) -> None:
    """Also of a module in the place of ``tl``, as that of Triton's language."""

    def kernel(tl: Any) -> None:
        program(tl)

    with pytest.raises(AttributeError, match=f"{re.escape(said)}$") as caught:
        start(kernel).resume()
    assert last_frame(caught.value).filename == __file__


def test_a_name_that_is_near_to_none() -> None:
    def kernel(tl: Any) -> None:
        assert not hasattr(tl, "frobnicate")
        tl.frobnicate()

    with pytest.raises(AttributeError, match=r"no attribute 'frobnicate'$"):
        start(kernel).resume()


def test_an_object_whose_names_cannot_be_had() -> None:
    class Odd:
        def __dir__(self) -> list[str]:
            raise ValueError("not told")

    def kernel(tl: Any) -> None:
        Odd().frobnicate  # type: ignore[attr-defined]  # noqa: B018

    with pytest.raises(AttributeError, match=r"no attribute 'frobnicate'$"):
        start(kernel).resume()


def test_a_name_is_suggested_where_a_request_failed_too() -> None:
    def kernel(tl: Any) -> None:
        try:
            tl.zeros(4, "f32")
        except ValueError:
            tl.zeroes(4, "f32")

    run = start(kernel)
    run.resume()
    with pytest.raises(AttributeError, match=r"did you mean 'zeros'\?$"):
        run.throw(ValueError())


def test_an_error_of_an_operator_on_handles_too() -> None:
    def kernel(tl: Any) -> None:
        _ = tl.zeros(4, "f32") + tl.zeros(4, "f16")

    run = start(kernel)
    run.resume()
    run.resume()
    with pytest.raises(KernelError, match="add of f32 and f16") as caught:
        run.resume()
    assert last_frame(caught.value).name == "kernel"


def test_an_error_thrown_in_ends_at_the_call_that_waits() -> None:
    def kernel(tl: Any) -> None:
        tl.zeros(4, "i8")
        tl.barrier()

    run = start(kernel)
    run.resume()
    run.resume()
    with pytest.raises(AddressFaultError, match="nothing at 4") as caught:
        run.throw(AddressFaultError("nothing at 4"))
    assert last_frame(caught.value).lineno == kernel.__code__.co_firstlineno + 2
    assert run.resume() is None


def test_a_kernel_may_catch_what_is_thrown_in() -> None:
    def kernel(tl: Any) -> None:
        with pytest.raises(AddressFaultError):
            tl.barrier()
        tl.barrier()

    run = start(kernel)
    run.resume()
    assert isinstance(run.throw(AddressFaultError("x")), Meet)


def test_close_runs_finally_blocks_and_says_nothing() -> None:
    log: list[str] = []

    def kernel(tl: Any) -> None:
        try:
            tl.barrier()
        finally:
            log.append("finally")
            tl.barrier()
            log.append("not reached")

    run = start(kernel)
    run.resume()
    run.close()
    run.close()
    assert log == ["finally"]
    assert run.resume() is None


def test_close_is_quiet_about_errors_and_about_kernels_that_never_began() -> None:
    def kernel(tl: Any) -> None:
        try:
            tl.barrier()
        finally:
            raise ValueError("while closing")

    run = start(kernel)
    run.resume()
    run.close()
    start(kernel).close()


def test_tl_outside_its_kernel() -> None:
    kept: list[Any] = []

    def kernel(tl: Any) -> None:
        kept.append(tl)
        tl.barrier()

    def other(tl: Any) -> None:
        kept[0].zeros(4, "f32")

    run = start(kernel)
    run.resume()
    (tl,) = kept
    for call in (lambda: tl.load(0, 4, "f32"), tl.barrier, lambda: tl.program_id(0), start(other).resume):
        with pytest.raises(KernelError, match=r"test_kernel_runner\.py:\d+: tl is used outside its kernel"):
            call()
    assert run.resume() is None
    for call in (lambda: tl.zeros(4, "f32"), tl.barrier, lambda: tl.num_programs(0)):
        with pytest.raises(KernelError, match="this tl belongs to a kernel that has ended"):
            call()


def test_a_call_that_does_not_fit_the_kernel_names_the_kernel() -> None:
    def kernel(a: int, tl: Any) -> None:
        raise TypeError("its own")

    line = kernel.__code__.co_firstlineno
    with pytest.raises(KernelError, match=rf"test_kernel_runner\.py:{line}: .*kernel\(\) missing 1 required"):
        start(kernel).resume()
    with pytest.raises(TypeError, match="its own"):
        start(kernel, 1).resume()


def test_a_generator_is_no_kernel() -> None:
    def kernel(tl: Any) -> Any:
        yield tl.zeros(4, "i8")

    with pytest.raises(KernelError, match="a kernel is a function without yield"):
        start(kernel).resume()


def helper_in_this_file(tl: Any) -> None:
    tl.zeros(4, "i8")


def test_commands_carry_the_line_of_the_kernels_file() -> None:
    def kernel(tl: Any) -> None:
        tl.zeros(4, "i8")
        helper_in_this_file(tl)
        exec("tl.zeros(4, 'i8')", {"tl": tl})

    run = start(kernel)
    first = kernel.__code__.co_firstlineno
    lines = []
    while isinstance(request := run.resume(), Command):
        lines.append(request.line)
    assert lines == [first + 1, helper_in_this_file.__code__.co_firstlineno + 1, first + 3]


def test_the_source_of_a_kernel() -> None:
    class Kernel:
        def run(self, tl: Any) -> None: ...

        def __call__(self, tl: Any) -> None: ...

    place = Source(__file__, helper_in_this_file.__code__.co_firstlineno)
    assert kernel_source(helper_in_this_file) == kernel_source(partial(helper_in_this_file, 1)) == place
    assert kernel_source(Kernel().run).file == __file__
    assert kernel_source(Kernel()) == Source("<Kernel>", 0)
    assert str(place).endswith(f"test_kernel_runner.py:{place.line}")


def test_a_kernel_that_resumes_itself_is_told_so_and_goes_on() -> None:
    def kernel() -> None:
        with pytest.raises(ValueError):
            runner.resume()
        runner.inside = True
        runner.request(Meet(1))

    runner = KernelRunner(kernel, (), {})
    assert runner.resume() == Meet(1)


def test_an_answer_that_comes_too_late_is_nobodys_result() -> None:
    runner = KernelRunner(lambda: None, (), {})
    assert runner.resume() is None
    assert runner.resume(n for n in ()) is None
    closed = KernelRunner(lambda given: given, ((n for n in ()),), {})
    closed.close()
    assert closed.resume() is None
