"""What is raised inside PyTorch's backward comes out of the call of backward, whoever raises it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402, F401 - before checkpoint, which imports triton

from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from frontends.torch_programs import AHBM, ONE_CUBE, machine  # noqa: E402
from kernbench.engine.engine import GraphEngine  # noqa: E402
from kernbench.engine.requests import Limits  # noqa: E402
from kernbench.runtime_api.bench_runner import run_bench  # noqa: E402


class ProgramError(Exception):
    """What the program raises."""


def fail(*_: object) -> Any:
    raise ProgramError


class Function(torch.autograd.Function):
    """Fails in backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return fail()


def hook(x: Any, w: Any) -> Any:
    x.register_hook(fail)
    return x


def hook_of_leaf(x: Any, w: Any) -> Any:
    w.register_hook(fail)
    return x


def hook_of_several(x: Any, w: Any) -> Any:
    register_multi_grad_hook((x, w), fail)
    return x


def hook_of_node(x: Any, w: Any) -> Any:
    x.grad_fn.register_hook(fail)
    return x


def hook_before_node(x: Any, w: Any) -> Any:
    x.grad_fn.register_prehook(fail)
    return x


def hook_of_accumulation(x: Any, w: Any) -> Any:
    x.grad_fn.next_functions[1][0].register_prehook(fail)
    return x


def function(x: Any, w: Any) -> Any:
    return Function.apply(x)


def module(x: Any, w: Any) -> Any:
    layer = torch.nn.Linear(4, 4).to(AHBM)
    layer.register_full_backward_hook(fail)
    return layer(x)


def saved_tensors(x: Any, w: Any) -> Any:
    with saved_tensors_hooks(lambda kept: kept, fail):
        return x * x


def recomputation(x: Any, w: Any, use_reentrant: bool = False) -> Any:
    calls: list[object] = []

    def square(y: Any) -> Any:
        calls.append(y)
        return y * y if len(calls) == 1 else fail()

    return checkpoint(square, x, use_reentrant=use_reentrant)


def backward_in_backward(x: Any, w: Any) -> Any:
    return recomputation(x, w, use_reentrant=True)


WAYS = (
    hook,
    hook_of_leaf,
    hook_of_several,
    hook_of_node,
    hook_before_node,
    hook_of_accumulation,
    function,
    module,
    saved_tensors,
    recomputation,
    backward_in_backward,
)


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_the_program_comes_out_of_backward(way: Callable[[Any, Any], Any]) -> None:
    with machine():
        w = torch.ones(4, 4, device=AHBM, requires_grad=True)
        y = way(torch.ones(4, 4, device=AHBM) @ w, w)
        with pytest.raises(ProgramError) as raised:
            y.sum().backward()
        assert raised.traceback[-1].name == "fail"
        assert w.grad is None
        assert (w.detach() + 1)[0, 0].item() == 2


def test_an_exception_keeps_its_cause() -> None:
    def fail_in_turn(_: object) -> None:
        raise KeyError("w") from ProgramError()

    with machine():
        w = torch.ones(4, device=AHBM, requires_grad=True)
        w.register_hook(fail_in_turn)
        with pytest.raises(KeyError, match="w") as raised:
            w.sum().backward()
        assert isinstance(raised.value.__cause__, ProgramError)


def test_an_operator_that_fails_inside_backward_says_so() -> None:
    with machine():
        w = torch.ones(4, 4, device=AHBM, requires_grad=True)
        y = w * 2
        y.grad_fn.register_prehook(lambda grads: (grads[0] @ torch.ones(5, 5, device=AHBM),))
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            y.sum().backward()


def test_a_failed_backward_leaves_gradients_as_they_were_or_right() -> None:
    with machine():
        before, after = (torch.ones(4, device=AHBM, requires_grad=True) for _ in range(2))
        after.grad = torch.full((4,), 3.0, device=AHBM)
        y = after * 2
        y.register_hook(fail)
        with pytest.raises(ProgramError):
            (y + before * 5).sum().backward()
        assert before.grad is None or before.grad.tolist() == [5.0] * 4
        assert after.grad.tolist() == [3.0] * 4
        (after * 2).sum().backward()
        assert after.grad.tolist() == [5.0] * 4


def test_hooks_that_do_not_fail_do_what_they_do() -> None:
    with machine():
        w = torch.ones(4, device=AHBM, requires_grad=True)
        w.register_hook(lambda grad: grad * 3)
        with saved_tensors_hooks(lambda x: x.cpu(), lambda x: x.to(AHBM)):
            y = w * w
        y.sum().backward()
        assert w.grad.tolist() == [6.0] * 4


def test_a_hook_after_accumulation_leaves_the_gradient_that_it_was_given() -> None:
    with machine():
        w = torch.ones(4, device=AHBM, requires_grad=True)
        w.register_post_accumulate_grad_hook(fail)
        with pytest.raises(ProgramError):
            w.sum().backward()
        assert w.grad.tolist() == [1.0] * 4


def test_a_hook_of_a_tensor_gives_a_tensor_or_nothing() -> None:
    with machine():
        w = torch.ones(4, device=AHBM, requires_grad=True)
        w.register_hook(lambda _: 3)
        with pytest.raises(TypeError, match="hook returned 'int'"):
            w.sum().backward()


def test_a_limit_ends_the_run_inside_backward() -> None:
    def program(_: Any) -> None:
        x = torch.ones(64, 64, device=AHBM, requires_grad=True)
        y = x
        for _ in range(4):
            y = y @ x
        y.sum().backward()

    def engine(limit: float | None) -> Any:
        return lambda machine, _: GraphEngine(machine, enable_data=False, limits=Limits(limit, None))

    whole = run_bench(topology=ONE_CUBE, bench_fn=program, engine_factory=engine(None))
    whole.raise_for_status()
    stopped = run_bench(topology=ONE_CUBE, bench_fn=program, engine_factory=engine(whole.completion.t_end * 0.8))
    assert "stopped by --max-sim-ns" in str(stopped.error)
