"""Random programs of tensors, step by step on the machine and on PyTorch's CPU: every tensor stays the same there.

What only one of the two refuses is left to other tests: such a step is taken back on both. Strides are not compared.
"""

from __future__ import annotations

import operator
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.errors import KernbenchError  # noqa: E402

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SHAPES = ((), (1,), (5,), (0,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (4, 1, 3), (2, 0, 4), (33, 5))
ODD = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
OFF = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
PAIRS = (
    "add sub mul div maximum minimum fmod remainder floor_divide pow atan2 eq lt logical_xor bitwise_and copysign fmax"
)
SINGLES = (
    "abs neg sign exp log1p sqrt rsqrt sin tanh sigmoid relu floor round reciprocal square isnan signbit nan_to_num"
)
CURVES = "silu gelu softplus elu leaky_relu hardtanh hardswish mish softsign logsigmoid"
FOLDS = "sum mean prod amax amin all any std var argmax logsumexp"
SCANS = "cumsum cumprod softmax log_softmax cummax cummin sort"
STEPS = 8

Step = Callable[[list[Any]], Any]


class Draw:
    """Draw tensors and steps of a program from a seed; a step reads tensors by their places in a list."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def of(self, choices: Any) -> Any:
        return self._random.choice(choices.split() if isinstance(choices, str) else choices)

    def number(self) -> Any:
        return self.of((2, -3, 0.5, 0, 7, -1.25, True))

    def tensor(self) -> Any:
        dtype, shape = self.of((*FLOATS * 3, *WHOLE, torch.bool)), self.of(SHAPES)
        if not dtype.is_floating_point:
            low = 0 if dtype in (torch.uint8, torch.bool) else -9
            return torch.randint(low, 2 if dtype is torch.bool else 10, shape).to(dtype)
        x = (torch.randn(shape) * 3).to(dtype)
        if x.numel() and self._random.random() < 0.15:
            x.view(-1)[self._random.randrange(x.numel())] = self.of(ODD)
        return x

    def step(self, tensors: list[Any]) -> Step:
        i, j = (self._random.randrange(len(tensors)) for _ in range(2))
        makers = (self._of_two, self._of_one, self._along_an_axis, self._view, self._in_place, self._by_places)
        return self.of(makers)(i, j, tensors[i])

    def _of_two(self, i: int, j: int, _: Any) -> Step:
        name, number = self.of(PAIRS), self.number()
        third = self.of((i, j))
        return self.of(
            (
                lambda t: getattr(torch, name)(t[i], t[j]),
                lambda t: getattr(torch, name)(t[i], number),
                lambda t: getattr(torch, name)(t[i], t[j], out=_strided_like(name, t[i], t[j])),
                lambda t: torch.where(t[i] > 0, t[j], t[third]),
                lambda t: torch.addcmul(t[i], t[j], t[third], value=2),
                lambda t: torch.lerp(t[i], t[j], 0.3),
            )
        )

    def _of_one(self, i: int, _: int, x: Any) -> Step:
        name, curve, dtype = self.of(SINGLES), self.of(CURVES), self.of((*FLOATS, *WHOLE))
        low, high = self.of(((-1, 1), (None, 0.5), (0, None), (2, -2)))
        return self.of(
            (
                lambda t: getattr(torch, name)(t[i]),
                lambda t: getattr(functional, curve)(t[i]),
                lambda t: t[i].clamp(low, high),
                lambda t: t[i].masked_fill(t[i] < 0, 1),
                # Beyond a whole type, C says nothing of a float.
                lambda t: (t[i].nan_to_num(0, 5, -5) if x.is_floating_point() else t[i]).abs().clamp(max=100).to(dtype),
                lambda t: t[i] @ t[i].mT if x.dim() > 1 else t[i].tril(),
            )
        )

    def _along_an_axis(self, i: int, _: int, x: Any) -> Step:
        dim = self._random.randrange(-x.dim(), x.dim()) if x.dim() else 0
        fold, scan, keep = self.of(FOLDS), self.of(SCANS), self.of((True, False))
        dims = tuple(self._random.sample(range(x.dim()), self._random.randrange(x.dim() + 1)))
        return self.of(
            (
                lambda t: getattr(torch, fold)(t[i], dim, keepdim=keep),
                lambda t: _first(getattr(torch, scan)(t[i], dim)),
                lambda t: t[i].flip(dims),
                lambda t: t[i].roll(2, dim) if t[i].dim() else t[i].roll(1),
            )
        )

    def _view(self, i: int, j: int, x: Any) -> Step:
        first, step = self._random.randrange(3), self.of((1, 2))
        return self.of(
            (
                lambda t: t[i].mT,
                lambda t: t[i][..., first::step],
                lambda t: t[i].reshape(-1),
                lambda t: t[i].unsqueeze(0).expand(3, *t[i].shape),
                lambda t: t[i].unfold(-1, 2, 1),
                lambda t: torch.cat([t[i].reshape(-1), t[j].reshape(-1)]),
                lambda t: torch.stack([t[i], t[i]], -1),
            )
        )

    def _in_place(self, i: int, j: int, _: Any) -> Step:
        name, number = self.of("add_ mul_ sub_ copy_ div_"), self.of((2, -1))
        alone, with_number = self.of("relu_ neg_ zero_ sqrt_"), self.of("add_ mul_ fill_ pow_")
        return self.of(
            (
                lambda t: getattr(t[i], name)(t[j]),
                lambda t: getattr(t[i], alone)(),
                lambda t: getattr(t[i], with_number)(number),
                lambda t: t[i].clamp_(-2, number + 3),
                lambda t: t[i][0].add_(t[j].sum().to(t[i].dtype)),
                lambda t: operator.setitem(t[i], (..., slice(None, None, 2)), t[j].flatten()[0]) or t[i],
            )
        )

    def _by_places(self, i: int, _: int, x: Any) -> Step:
        n = x.shape[0] if x.dim() else 1
        places = [self._random.randrange(max(n, 1)) for _ in range(3)]
        k, number = self._random.randrange(1, 4), self.of((1, 2.5))
        return self.of(
            (
                lambda t: t[i][torch.tensor(places, device=t[i].device)],
                lambda t: t[i][t[i] > 0],
                lambda t: t[i].topk(k)[0],
                lambda t: t[i].index_put(
                    (torch.tensor(places, device=t[i].device),),
                    torch.tensor(number, device=t[i].device).to(t[i].dtype),
                    accumulate=True,
                ),
            )
        )


def _strided_like(name: str, a: Any, b: Any) -> Any:
    """Return a tensor for the result whose elements lie apart."""
    dtype = getattr(torch, name)(a.flatten()[:1].cpu(), b.flatten()[:1].cpu()).dtype
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return torch.zeros(*shape, 2, dtype=dtype, device=a.device)[..., 1]


def _first(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else result[0]


def _differ(mine: Any, wanted: Any) -> str:
    """Tell how a tensor of the machine differs from that of the CPU; empty when it does not."""
    if (mine.dtype, mine.shape) != (wanted.dtype, wanted.shape):
        return f"{mine.dtype} {tuple(mine.shape)}, must be {wanted.dtype} {tuple(wanted.shape)}"
    off, here = OFF.get(wanted.dtype, 0.0), mine.cpu()
    bad = ~torch.isclose(here, wanted, rtol=off, atol=off, equal_nan=wanted.is_floating_point())
    return f"{here[bad][:4].tolist()}, must be {wanted[bad][:4].tolist()}" if bad.any() else ""


def _attempt(step: Step, tensors: list[Any]) -> Any:
    """Carry a step out; None where it is refused."""
    try:
        return step(tensors)
    except (RuntimeError, IndexError, TypeError, ValueError, KernbenchError):
        return None


def run_program(seed: int) -> None:
    """Run a program on both, and compare all tensors after each step."""
    draw = Draw(seed)
    torch.manual_seed(seed)
    here = [draw.tensor() for _ in range(4)]
    there = [x.to(AHBM) for x in here]
    for number in range(STEPS):
        step = draw.step(here)
        wanted, mine = _attempt(step, here), _attempt(step, there)
        if (wanted is None) != (mine is None):  # one may have written: tensors of their own, with the CPU's values
            here = [x.clone() for x in here]
            there = [x.to(AHBM) for x in here]
        elif wanted is not None:
            here.append(wanted)
            there.append(mine)
        for place, (x, y) in enumerate(zip(there, here, strict=True)):
            assert not (text := _differ(x, y)), f"seed {seed}, step {number}, tensor {place}: {text}"


def run_programs(first: int, count: int) -> None:
    """Run the programs of some seeds."""
    with machine(), warnings.catch_warnings(action="ignore"):
        for seed in range(first, first + count):
            run_program(seed)


def test_random_programs_give_what_pytorch_gives() -> None:
    run_programs(1, 8)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 361, 60))
def test_many_random_programs_give_what_pytorch_gives(first: int) -> None:
    run_programs(first, 60)
