"""What PyTorch's CPU refuses the machine refuses, with its error and its words: operators by kinds by ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.frontends.torch.refusals import count_signatures  # noqa: E402

SLOW = pytest.mark.slow
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
KINDS = (torch.float32, torch.float16, torch.bfloat16, *WHOLE, torch.bool)
SHAPES = ((), (3,), (2, 3), (0, 3), (2, 1, 3))
TWO_SHAPES = (((2, 3), (2, 3)), ((3,), (2, 3)), ((2, 2), (2,)), ((0, 3), (4,)), ((2,), ()))
ONE_OPERAND = """
x.exp() x.neg() x.abs() x.relu() x.sqrt() x.rsqrt() x.floor() x.round() x.frac() x.reciprocal() x.sigmoid() x.erfinv()
x.lgamma() x.bitwise_not() x.logical_not() x.isnan() x.sign() x.nan_to_num() f.gelu(x) f.silu(x) f.mish(x) f.elu(x)
f.softplus(x) f.hardswish(x) f.hardsigmoid(x) f.leaky_relu(x) f.logsigmoid(x) f.tanhshrink(x) f.hardtanh(x) f.selu(x)
x.mean() x.sum() x.var() x.std() x.prod() x.amax() x.argmax() x.any() x.norm() x.count_nonzero() x.sum(1) x.mean(0)
x.softmax(-1) x.log_softmax(0) x.cumsum(0) x.cumprod(-1) x.cummax(0)[0] x.logsumexp(0) x.sort(-1)[0] x.topk(1)[0]
x.median() x.max(1)[0] x.kthvalue(1)[0] x.tril() x.t() x.flip(0) x.roll(1,0) x.unique() x.nonzero() x.bincount()
x+True x-True x*2.5 x/2 x//0 x%0 x//2 x%3 x**2 x**-1 2**x 1-x True-x x==300 x<-1 x&3 x<<2 x.clamp(-300,2) x.clamp(0,.5)
x.add(300) x.fmod(2) x.lerp(x,.3) x.masked_fill(x>0,300) x.masked_fill(x>0,-1) x.masked_fill(x,1) x.fill_(2.5)
x.fill_(300) x.div_(2) x.add_(.5) x.mul_(True) x.sub_(True) x.pow_(.5) x.sqrt_() x.exp_() x.clamp_(0,2.5) x.neg_()
x.sigmoid_() x.logical_not_() x.bitwise_not_() x.cumsum_(0) x.relu_() x.floor_divide_(2) x.remainder_(0) x.round_()
f.layer_norm(x,(3,)) f.rms_norm(x,(3,)) f.group_norm(x,1) f.max_pool1d(x,2) f.avg_pool1d(x,2) f.one_hot(x,5)
f.conv1d(x,x) f.linear(x,x) f.pad(x,(1,1)) f.normalize(x,dim=-1)
torch.sum(x,0,out=o(int64)) torch.exp(x,out=o(int32)) torch.add(x,x,out=o(uint8)) torch.mul(x,x,out=o(float16))
torch.eq(x,x,out=o(float32)) torch.cumsum(x,0,out=o(float32)) torch.div(x,2,out=o(bool)) torch.amax(x,0,out=o(float32))
torch.mm(x,x,out=o(float32)) torch.cat([x,x],out=o(int16)) torch.abs(x,out=o(int8)) torch.clamp(x,0,1,out=o(int64))
"""
TWO_OPERANDS = """
a+b a-b a*b a/b a%b a//b a**b a&b a|b a^b a<b a==b a.maximum(b) a.fmin(b) a.fmod(b) a.atan2(b) a.hypot(b)
torch.nextafter(a,b) torch.copysign(a,b) torch.xlogy(a,b) torch.heaviside(a,b) torch.logaddexp(a,b) a.logical_and(b)
a.add_(b) a.sub_(b) a.mul_(b) a.div_(b) a.copy_(b) a.pow_(b) a.bitwise_and_(b) a.logical_or_(b) a.eq_(b) a.fmod_(b)
torch.where(a>0,a,b) a.lerp(b,.5) a.lerp(b,b) torch.addcmul(a,b,b) torch.addcdiv(a,a,b)
a.masked_fill(b,1) a.masked_fill(b>0,2) a.masked_fill_(b,0) a.clamp(b,b) a.clamp_min(b) a@b torch.mm(a,b) torch.mv(a,b)
torch.dot(a,b) torch.addmm(a,b,b) torch.addmv(a,a,b) torch.outer(a,b) torch.cat([a,b]) torch.stack([a,b]) a[b] a.take(b)
a.gather(0,b) a.index_select(0,b) a.scatter(0,b,1) a.scatter_add(0,b,a) a.index_add(0,b,a) a.index_copy(0,b,a)
a.index_fill(0,b,1) a.masked_select(b) a.isclose(b) a.equal(b) a.allclose(b) f.mse_loss(a,b) f.l1_loss(a,b)
f.smooth_l1_loss(a,b) f.cross_entropy(a,b) f.nll_loss(a,b) f.binary_cross_entropy(a,b) f.embedding(a,b) f.kl_div(a,b)
f.linear(a,b) f.prelu(a,b) f.layer_norm(a,(3,),b) f.cosine_similarity(a,b) a.index_put((b,),a)
torch.add(a,b,out=o(int64)) torch.sub(a,b,out=o(float16)) torch.maximum(a,b,out=o(uint8)) torch.lt(a,b,out=o(int8))
"""


def call(text: str, device: Any, **tensors: Any) -> Exception | None:
    """Evaluate an expression on a device; return its error."""
    scope = {
        "torch": torch,
        "f": functional,
        "o": lambda dtype: torch.empty(0, dtype=dtype, device=device),
        **{dtype.__repr__().removeprefix("torch."): dtype for dtype in KINDS},
        **{name: x.clone().to(device) for name, x in tensors.items()},
    }
    try:
        eval(text, scope)
    except Exception as error:
        return error
    return None


def is_narrow_alone(refusal: Exception) -> bool:
    """Tell whether the CPU lacks a kernel for a narrow float alone: GPUs have it, and so does the machine."""
    return isinstance(refusal, NotImplementedError) and str(refusal).endswith(("'Half'", "'BFloat16'"))


def ones(shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.ones(shape, dtype=dtype)


def calls_of_one() -> list[tuple[str, dict[str, Any]]]:
    kinds = product(ONE_OPERAND.split(), KINDS, SHAPES)
    return [(text, {"x": ones(shape, dtype)}) for text, dtype, shape in kinds]


def calls_of_two() -> list[tuple[str, dict[str, Any]]]:
    kinds = zip(product(TWO_OPERANDS.split(), KINDS, KINDS), cycle(TWO_SHAPES), strict=False)
    return [
        (text, {"a": ones(shapes[0], first), "b": ones(shapes[1], second)}) for (text, first, second), shapes in kinds
    ]


def differences(calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the calls that the machine does not take, or refuse, as the CPU does."""
    lines = []
    with machine():
        for text, tensors in calls:
            mine, wanted = call(text, AHBM, **tensors), call(text, "cpu", **tensors)
            if mine is None and (wanted is None or is_narrow_alone(wanted)):
                continue
            if (type(mine), str(mine)) != (type(wanted), str(wanted)):
                kinds = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors.values())
                lines.append(f"{text} of {kinds}: {mine!r}, on the CPU {wanted!r}")
    return lines


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [0, *[pytest.param(part, marks=SLOW) for part in range(1, 12)]])
@pytest.mark.parametrize("calls", [calls_of_one, calls_of_two])
def test_the_machine_refuses_what_the_cpu_refuses(calls: Callable[[], Any], part: int) -> None:
    """A drawn sample, or one of the parts that have all calls between them."""
    every = calls()
    random.Random(0).shuffle(every)
    assert not differences(every[:30] if part == 0 else every[30 + part - 1 :: 11])


# Large operands: the meta kernel for shapes, the CPU kernel on one element for kinds.
LARGE = """
x.softmax(-1) x.topk(60)[0] f.layer_norm(x,(128,)) f.gelu(x) x.mean() x.div_(2) x-True x@x.T x.masked_fill(x>0,300)
f.conv1d(x,x[:,:3,None].expand(-1,128,-1)) f.avg_pool1d(x,3) x.add(x[:,:3]) x.sum(2) x.cumsum(0)
torch.add(x,.5,out=o(int64)) torch.cat([x,x[0]]) x.gather(0,x) f.embedding(x,x) x[x[:,:2]]
"""


@pytest.mark.parametrize(
    "dtype", [torch.int64, *[pytest.param(x, marks=SLOW) for x in (torch.float32, torch.bool)]], ids=str
)
def test_large_operands_are_refused_by_kind_and_by_shape(dtype: Any) -> None:
    x = ones((40, 128), dtype)
    with machine():
        for text in LARGE.split():
            mine, wanted = call(text, AHBM, x=x), call(text, "cpu", x=x)
            assert type(mine) is type(wanted), (text, mine, wanted)


def test_shifts_windows_medians_and_masks_of_whole_numbers() -> None:
    flags, counts = ones((2, 3), torch.bool), ones((2, 3), torch.int64)
    calls = [
        ("f.max_pool1d(x,2)", counts),
        ("x.median()", flags[:0]),
        ("x[x[:,:2]]", flags),
        ("x.__ilshift__(2)", flags),
    ]
    assert not differences([(text, {"x": x}) for text, x in calls])
    with machine():
        shifted = flags.to(AHBM) << 2
        assert (shifted.dtype, shifted.tolist()) == (torch.int64, [[4] * 3] * 2)
        assert flags[:0].to(AHBM).median().item() is True
        x = torch.tensor([[1.0, 3.0, 2.0, 0.0]], device=AHBM, requires_grad=True)
        functional.max_pool1d(x, 2).sum().backward()
        assert x.grad.tolist() == [[0, 1, 1, 0]]


def test_attention_and_norms_of_whole_numbers_are_refused() -> None:
    x = ones((1, 1, 2, 4), torch.int64)
    texts = [
        "f.scaled_dot_product_attention(x,x,x)",
        "f.rms_norm(x,(4,))",
        "f.scaled_dot_product_attention(x,x.float(),x)",
    ]
    assert not differences([(text, {"x": x}) for text in texts])


def test_numbers_of_one_size_are_one_signature() -> None:
    """A step counter and a rate that change do not fill the cache; division by 0 is asked for itself."""
    with machine():
        x = torch.ones(3, dtype=torch.int32, device=AHBM)
        for step in range(1, 4):
            x.add(step * 1000 + 0.5), x.mul(2 * step), x.remainder(step)
        asked = count_signatures()
        for step in range(5, 9):
            x.add(step * 1000 + 0.5), x.mul(2 * step)
        assert count_signatures() == asked
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            x.remainder(0)


def test_asking_draws_no_random_numbers() -> None:
    with machine():
        x = torch.ones(5, 7, device=AHBM)
        torch.manual_seed(1)
        wanted = torch.rand(4)
        torch.manual_seed(1)
        functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        with pytest.raises(NotImplementedError, match="normal"):
            torch.ones(3, dtype=torch.int64, device=AHBM).normal_()
        assert torch.equal(torch.rand(4), wanted)


# numbers beyond a type, sums in narrow types


NUMBERS = (-1, 200, 256, -200, True, 2.5)
WITH_NUMBER = "x==n x!=n x<n x>=n x+n x-n x*n x|n x^n x.masked_fill(x>0,n) torch.where(x>0,x,n) x.clamp(n) x.add_(n)"


def outcome(text: str, **scope: Any) -> Any:
    try:
        return eval(text, {"torch": torch, **scope})
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dtype", [torch.uint8, *[pytest.param(x, marks=SLOW) for x in (torch.int8, torch.bool)]])
def test_numbers_beyond_a_type_are_as_pytorch_has_them(dtype: Any) -> None:
    x = torch.tensor([0, 1, 255, 100, -56]).to(dtype)
    with machine():
        for text, n in product(WITH_NUMBER.split(), NUMBERS):
            mine, wanted = outcome(text, x=x.to(AHBM), n=n), outcome(text, x=x.clone(), n=n)
            if isinstance(wanted, tuple):
                assert mine == wanted, (text, n)
            else:
                assert mine.dtype is wanted.dtype, (text, n)
                assert torch.equal(mine.cpu(), wanted), (text, n)


ACCUMULATING = """
x.index_add(0,i,s) x.index_add(0,i,s,alpha=3) x.scatter_add(0,j,s) x.index_put((i,),s,accumulate=True)
x.t().index_put((i,i),s[:,0],accumulate=True) x.repeat(1,2)[:,::2].scatter_add_(0,j,s)
x.t().contiguous().t().index_add_(0,i,s)
"""


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64], ids=str)
def test_narrow_whole_numbers_are_added_up_and_wrap(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    i = torch.tensor([0, 3, 3, 1, 3, 3])
    x, s = (torch.randint(-128, 127, shape, generator=generator).to(dtype) for shape in ((4, 4), (6, 4)))
    operands = {"x": x, "s": s, "i": i, "j": i[:, None].expand(6, 4)}
    with machine() as context:
        there = {name: value.to(AHBM) for name, value in operands.items()}
        for text in ACCUMULATING.split():
            assert torch.equal(outcome(text, **there).cpu(), outcome(text, **operands)), text
        assert not context.unmodelled


def test_products_of_whole_numbers_are_exact() -> None:
    x = torch.arange(12, dtype=torch.int32).reshape(3, 4) * 100003
    with machine() as context:
        assert torch.equal((x.to(AHBM) @ x.to(AHBM).T).cpu(), x @ x.T)
        assert context.unmodelled == {"mm": 1}
