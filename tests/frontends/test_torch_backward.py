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
        raise ProgramError


def hook(x: Any, w: Any) -> Any:
    x.register_hook(fail)
    return x


def hook_of_leaf(x: Any, w: Any) -> Any:
    w.register_hook(fail)
    return x


def hook_after_accumulation(x: Any, w: Any) -> Any:
    w.register_post_accumulate_grad_hook(fail)
    return x


def hook_of_several(x: Any, w: Any) -> Any:
    register_multi_grad_hook((x, w), fail)
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


def recomputation(x: Any, w: Any) -> Any:
    calls: list[object] = []

    def square(y: Any) -> Any:
        calls.append(y)
        return y * y if len(calls) == 1 else fail()

    return checkpoint(square, x, use_reentrant=False)


WAYS = (hook, hook_of_leaf, hook_after_accumulation, hook_of_several, function, module, saved_tensors, recomputation)


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_the_program_comes_out_of_backward(way: Callable[[Any, Any], Any]) -> None:
    with machine():
        w = torch.ones(4, 4, device=AHBM, requires_grad=True)
        y = way(torch.ones(4, 4, device=AHBM) @ w, w)
        with pytest.raises(ProgramError):
            y.sum().backward()
        assert (w.detach() + 1)[0, 0].item() == 2


def test_hooks_that_do_not_fail_do_what_they_do() -> None:
    with machine():
        w = torch.ones(4, device=AHBM, requires_grad=True)
        w.register_hook(lambda grad: grad * 3)
        with saved_tensors_hooks(lambda x: x.cpu(), lambda x: x.to(AHBM)):
            y = w * w
        y.sum().backward()
        assert w.grad.tolist() == [6.0] * 4


def test_a_hook_of_a_tensor_gives_a_tensor_or_nothing() -> None:
    with machine():
        w = torch.ones(4, device=AHBM, requires_grad=True)
        w.register_hook(lambda _: 3)
        with pytest.raises(TypeError, match="it returned int, must be a tensor or None"):
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
