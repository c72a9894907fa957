"""Random numbers: the host draws them with PyTorch's CPU generator, and the machine writes them.

The numbers that PyTorch's CPU draws depend on the strides of the tensor. The generator fills memory in order, and uses
another formula for 16 or more contiguous elements. The host therefore draws into a tensor of the same strides. The
simulated time is that of MATH computing the numbers, and of the DMA storing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import NotImplementedType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.common.values import value
from kernbench.frontends.torch.generators import HostGenerator
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.making import copy, made_like
from kernbench.frontends.torch.pointwise import apply
from kernbench.frontends.torch.reductions import map_rows
from kernbench.frontends.torch.storage import KNOWN_BYTES, TorchOperator, current, machine_bits
from kernbench.frontends.torch.tensor import AhbmTensor, new, peek, put_known, resize, sip_of, storage_of, wait_for
from kernbench.kernels.elementwise import write_numbers
from kernbench.kernels.functions import scale_passed
from kernbench.kernels.sort import accumulate_probabilities

aten = torch.ops.aten
_DRAWN_WITHOUT_DATA = 1 << 18
"""Maximum elements of a tensor for which a run without data draws, too, so that the host's next numbers agree."""


@value
class ShardOfDraw:
    """The part of a distributed tensor that this rank stores.

    ``shape``: of the complete tensor. ``local``: of the part, which begins at ``offsets``. ``generator``: the source of
    the numbers; None: that of the operator.
    """

    shape: tuple[int, ...]
    local: tuple[int, ...]
    offsets: tuple[int, ...]
    generator: torch.Generator | None = None

    def draw(self, dtype: torch.dtype, fill: Callable[..., Tensor], generator: torch.Generator | None) -> Tensor:
        """Return the elements of the part: draw those of the complete tensor in order."""
        whole = fill(torch.empty(self.shape, dtype=dtype, device="cpu"), self.generator or generator)
        for axis, (offset, n) in enumerate(zip(self.offsets, self.local, strict=True)):
            whole = whole.narrow(axis, offset if n else 0, n)
        return whole


_SHARD: ContextVar[ShardOfDraw | None] = ContextVar("shard", default=None)
"""The part of a distributed tensor whose operator runs in this rank"""


@contextmanager
def draw_whole(shard: ShardOfDraw) -> Iterator[None]:
    """Draw the numbers of complete distributed tensors inside the ``with`` block, and use those of ``shard``."""
    token = _SHARD.set(shard)
    try:
        yield
    finally:
        _SHARD.reset(token)


def draw(
    operator: TorchOperator, x: Tensor, *args: Any, generator: torch.Generator | None = None
) -> Tensor | NotImplementedType:
    """Fill ``x`` with the numbers that ``operator`` draws; NotImplemented if the numbers depend on another tensor."""
    if any(isinstance(argument, AhbmTensor) for argument in args):
        return NotImplemented

    def fill(drawn: Tensor, source: torch.Generator | None) -> Tensor:
        filled: Tensor = operator(drawn, *args, generator=source)
        return filled

    def numbers() -> Tensor:
        shard = _SHARD.get()
        if shard is not None and shard.local == tuple(x.shape):
            return shard.draw(x.dtype, fill, generator)
        return fill(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu"), generator)

    return _write_numbers(operator.overloadpacket.__name__.rstrip("_"), x, numbers)


def _write_numbers(operator: str, x: Tensor, draw_numbers: Callable[[], Tensor]) -> Tensor:
    """Write to ``x`` the elements that ``draw_numbers()`` returns, in the order of the indices of ``x``."""
    current().requests.refuse_in_capture("draws random numbers, which the host does")
    numbers, drawn = None, None
    by_stride = sorted(range(x.dim()), key=x.stride, reverse=True)
    in_memory_order = x.permute(by_stride)
    if current().has_data or x.numel() <= _DRAWN_WITHOUT_DATA:
        drawn = draw_numbers().reshape(x.shape)
        numbers = machine_bits(drawn.permute(by_stride).reshape(-1)) if current().has_data else None
    is_contiguous = in_memory_order.is_contiguous()
    target = in_memory_order if is_contiguous else new(tuple(in_memory_order.shape), x.dtype, sip_of(x))
    if current().n_ranks > 1 and not current().has_data:
        storage_of(target).note_drawn(drawn)
    if target.numel():
        program = partial(write_numbers, size=target.numel(), dtype=dtype_of(x), numbers=numbers)
        launch(operator, program, (target,))
    if not is_contiguous:
        copy(in_memory_order, target)
    is_whole_number = not (x.dtype.is_floating_point or current().has_data)
    if drawn is not None and is_whole_number and drawn.numel() * drawn.element_size() <= KNOWN_BYTES:
        put_known(x, drawn)
    return x


def drawn_like(in_place: TorchOperator) -> Callable[..., Any]:
    """Return the lowering of an operator that draws into a new tensor like its operand."""

    def lowering(
        operator: TorchOperator, x: Tensor, *args: Any, generator: torch.Generator | None = None, **options: Any
    ) -> Tensor | NotImplementedType:
        out = made_like(operator, (x, *args), options)
        assert out is not None, "a tensor like one of the machine"
        return draw(in_place, out, *args, generator=generator)

    return lowering


def drawn_anew(in_place: TorchOperator) -> Callable[..., Any]:
    """Return the lowering of the out-of-place variant of operator ``in_place``."""

    def lowering(
        _: TorchOperator, x: Tensor, *args: Any, generator: torch.Generator | None = None
    ) -> Tensor | NotImplementedType:
        return draw(in_place, aten.empty_like.default(x), *args, generator=generator)

    return lowering


def rand_out(size: Sequence[int], *, out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill ``out`` with uniform numbers from 0 to 1."""
    return resize(out, tuple(size)).uniform_(0, 1, generator=generator)


def randn_out(size: Sequence[int], *, out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill ``out`` with standard normal numbers."""
    return resize(out, tuple(size)).normal_(0, 1, generator=generator)


def randint_out(*bounds_and_size: Any, out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill ``out`` with integers from 0, or from a lower bound, below an upper bound. The size is last."""
    *bounds, size = bounds_and_size
    low, high = (0, *bounds)[-2:]
    return resize(out, tuple(size)).random_(low, high, generator=generator)


def _check(operator: TorchOperator, *args: Any) -> None:
    """Raise PyTorch's own error if its CPU kernel refuses the operands. The check takes no simulated time.

    The kernel draws from a separate generator. A run without data checks tensors of ones in place of the values.
    """

    def on_host(x: Any) -> Any:
        if not isinstance(x, AhbmTensor):
            return x
        if current().has_data:
            return peek(x)
        wait_for(x)
        return torch.ones(x.shape, dtype=x.dtype, device="cpu")

    operator(*map(on_host, args), generator=HostGenerator())


# distributions whose parameters are tensors


def normal(
    mean: Tensor | float,
    std: Tensor | float = 1.0,
    *,
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Draw standard normal numbers, then scale and shift them. Each step is rounded, as in PyTorch."""
    tensors = [x for x in (mean, std) if isinstance(x, AhbmTensor)]
    shape = tuple(torch.broadcast_shapes(*[x.shape for x in tensors]))
    out = new(shape, tensors[0].dtype, sip_of(tensors[0])) if out is None else resize(out, shape)
    if not isinstance(std, Tensor):
        return out.normal_(0, std, generator=generator).add_(mean)
    _check(aten.normal.float_Tensor, 0.0, std)
    return out.normal_(0, 1, generator=generator).mul_(std).add_(mean)


def bernoulli(x: Tensor, *, generator: torch.Generator | None = None, out: Tensor | None = None) -> Tensor:
    """Draw 0 or 1 for each probability in ``x``, by comparing uniform numbers with the probabilities."""
    _check(aten.bernoulli.default, x)
    shape = tuple(x.shape)
    strides = None if out is None else resize(out, shape).stride()
    drawn = new(shape, torch.float32, sip_of(x), strides)
    is_one = drawn.uniform_(0, 1, generator=generator) < x
    return is_one.to(x.dtype) if out is None else out.copy_(is_one)


def native_dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Set elements to 0 with probability ``p``, and scale the others. Return the result and the mask of the others."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = aten.empty_like.default(x, dtype=torch.bool).bernoulli_(1 - p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    out = aten.empty_like.default(x)
    body = partial(scale_passed, scale=scale)
    return apply("native_dropout", body, out, (x, mask), (F32, dtype_of(mask))), mask


def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw the indices with the largest p / q, as PyTorch does, where p is a probability and q is random."""
    _check(aten.multinomial.default, x, num_samples, replacement)
    if replacement and num_samples > 1:
        return _multinomial_with_replacement(x, num_samples, generator)
    race = x / aten.empty_like.default(x).exponential_(1, generator=generator)
    return race.argmax(-1, keepdim=True) if num_samples == 1 else race.topk(num_samples)[1]


def _multinomial_with_replacement(x: Tensor, num_samples: int, generator: torch.Generator | None) -> Tensor:
    """Draw indices by inversion, as PyTorch does: an index counts the cumulative probabilities below a uniform number.

    Cumulative probabilities are added in order, in f32, and divided by the total.
    """
    rows = x.contiguous()
    cumulative = new(tuple(x.shape), torch.float32, sip_of(x))
    if x.numel():
        map_rows("multinomial", accumulate_probabilities, rows, (cumulative,))
    thresholds = new((*x.shape[:-1], num_samples), torch.float32, sip_of(x))

    def draw_uniform() -> Tensor:
        drawn = torch.empty(thresholds.numel(), dtype=torch.float64, device="cpu")
        return _round_up(drawn.uniform_(generator=generator))

    _write_numbers("multinomial", thresholds, draw_uniform)
    return (cumulative.unsqueeze(-2) < thresholds.unsqueeze(-1)).sum(-1)


def _round_up(x: Tensor) -> Tensor:
    """Round f64 numbers up to f32. An f32 number is below the result exactly if it is below the original."""
    rounded = x.float()
    return torch.where(rounded.double() < x, rounded.nextafter(torch.full_like(rounded, torch.inf)), rounded)
