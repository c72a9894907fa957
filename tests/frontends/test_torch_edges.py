"""Numbers at the edges of their types, on the machine as on PyTorch's CPU: NaN, infinities, 0, what wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, 0.5, -0.3]
SLOW = pytest.mark.slow
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
MOSTLY_F32 = [FLOATS[0], *[pytest.param(dtype, marks=SLOW) for dtype in FLOATS[1:]]]
ROUNDING = {torch.float32: 3e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
SCOPE: dict[str, Any] = {"torch": torch, "f": functional, "nan": NAN, "inf": INF}

ONE_OPERAND = """
f.hardshrink(x)  x.clamp(min=nan)  torch.native_dropout(x,1.,True)[0]  x//0  x//-0.  x//2  x//inf  x//-inf  x%inf
x%-2.  torch.div(x,0,rounding_mode='floor')  f.rms_norm(x.view(3,4),(4,))  x.view(3,4).amax(1)  x.view(3,4).argmax(1)
torch.linalg.vector_norm(x[5:],-inf)  x.view(3,4)@x.view(4,3)
"""
MORE = """
x.relu()  f.threshold(x,.5,2.)  f.hardtanh(x)  f.leaky_relu(x)  f.elu(x)  f.softplus(x)  f.softshrink(x)  x.sign()
x.clamp(-1,1)  x.masked_fill(x>0,1.)  torch.where(x>0,x,2.)  x.nan_to_num()  x**0  x**2.5  2**x  x.half().float()
x.isnan()  x.bool()  x.fmod(inf)  torch.div(x,.3,rounding_mode='trunc')  x.view(3,4).softmax(1)
x.view(3,4).log_softmax(0)  x.view(3,4).logsumexp(1)  f.layer_norm(x.view(3,4),(4,))  x.view(3,4).sum(1)
x.view(3,4).min(1)[0]  x.view(3,4).any(1)  x.view(3,4).all(0)  x.sort()[0]  x.topk(3)[0]  x.topk(3,largest=False)[0]
x.view(3,4).median(1)[0]  x.view(3,4).cumsum(1)  torch.linalg.vector_norm(x.view(3,4),inf,1)  f.max_pool1d(x[None],3)
torch.nansum(x)  x.view(3,4).norm(dim=0)
"""
TWO_OPERANDS = """
a+b  a*b  a/b  a//b  a%b  torch.fmod(a,b)  torch.maximum(a,b)  torch.minimum(a,b)  torch.fmax(a,b)  torch.fmin(a,b)
a**b  torch.atan2(a,b)  torch.hypot(a,b)  a<b  a!=b  torch.logical_xor(a,b)  torch.copysign(a,b)  torch.lerp(a,b,.3)
torch.lerp(a,b,.7)  torch.lerp(a,b,b)  torch.addcmul(a,b,b)  torch.where(a>b,a,b)  torch.div(a,b,rounding_mode='floor')
"""
NEIGHBOURS = "torch.nextafter(a,b)  torch.fmod(a,.3)  torch.remainder(a,.3)  torch.div(a,b,rounding_mode='trunc')"
GRADIENTS = """
x.relu()  f.threshold(x,.5,2.)  x%2  f.smooth_l1_loss(x,x.detach()*0,reduction='none')  x[3:].var(correction=9)
x[3:].std(correction=12)  x[3:].flip(())
"""
WHOLE = """
i**7  i**13  i**n  31**n  (-3)**n  i**i.abs()  i*i*i*i*i  i<<3  i<<70  i>>70  i<<(i*0-1)  i>>(i*0-1)  i//7  i%-7
torch.fmod(i,7)  torch.where(i>0,2**31-1,2**30+1)  torch.addcmul(i,i,i,value=3)  torch.sub(i,i,alpha=3)  i.cumsum(0)
i.prod()  i.sum()  i.sum(dtype=i.dtype)  i.square()  i.neg()  i.abs()  torch.maximum(i,n.to(i.dtype))  i.clamp(-5,100)
torch.fmax(i,n.to(i.dtype))  i+2**31-1  i*300  i==-1  i<200  i.any()  i.all(0)
"""


def assert_same(mine: Any, wanted: Any, text: str) -> None:
    assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape), text
    off = ROUNDING.get(wanted.dtype, 0.0)
    torch.testing.assert_close(
        mine.cpu(), wanted, atol=off, rtol=off, equal_nan=True, msg=lambda why: f"{text} of {wanted.dtype}: {why}"
    )


def check(table: str, **tensors: Any) -> None:
    """Assert that the expressions of a table give on the machine what they give on the CPU."""
    there = {name: x.to(AHBM) for name, x in tensors.items()}
    for text in table.split():
        assert_same(eval(text, SCOPE | there), eval(text, SCOPE | tensors), text)


@pytest.mark.parametrize("table", [ONE_OPERAND, pytest.param(MORE, marks=SLOW)], ids=["edges", "more"])
def test_nan_and_infinities_go_through_operators(table: str) -> None:
    with machine():
        check(table, x=torch.tensor(SPECIAL))


@pytest.mark.parametrize("dtype", MOSTLY_F32, ids=str)
def test_nan_and_infinities_go_through_operators_of_two(dtype: Any) -> None:
    values = torch.tensor(SPECIAL)
    with machine():
        check(TWO_OPERANDS, a=values.repeat_interleave(12).to(dtype), b=values.repeat(12).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_operators_that_a_wider_type_would_change(dtype: Any) -> None:
    x = torch.tensor([*SPECIAL, 100.0, 3.0])
    with machine():
        check(NEIGHBOURS, a=x.repeat_interleave(14).to(dtype), b=x.repeat(14).to(dtype))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_gradients_at_the_edges() -> None:
    with machine():
        for text in GRADIENTS.split():
            leaves = [torch.tensor(SPECIAL, device=device, requires_grad=True) for device in ("cpu", AHBM)]
            for x in leaves:
                eval(text, SCOPE | {"x": x}).sum().backward()
            assert_same(leaves[1].grad, leaves[0].grad, text)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variances_of_too_few_elements() -> None:
    with machine():
        x = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
        for correction in (0, 0.5, 2, 3):
            for call in (torch.var, torch.std):
                assert_same(call(x.to(AHBM), 1, correction=correction), call(x, 1, correction=correction), "var")


@pytest.mark.parametrize(
    "dtype",
    [torch.int32, *[pytest.param(getattr(torch, name), marks=SLOW) for name in ("uint8", "int8", "int16", "int64")]],
)
def test_whole_numbers_are_exact_and_wrap(dtype: Any) -> None:
    i = torch.tensor([13, 100, 99, 3, 1, 2, 0, 127, 1000, 46341, -1, -13]).to(dtype)
    with machine():
        check(WHOLE, i=i, n=torch.arange(12))


def test_axes_without_elements() -> None:
    with machine():
        x = torch.zeros(2, 0)
        check("x.prod(1)  x.prod(1,keepdim=True)  x.sum(1)  x.sum(1,keepdim=True)  x.prod()", x=x)
        for device in ("cpu", AHBM):
            for call in (torch.argmax, torch.max):
                with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
                    call(x.to(device), 1)


def test_negative_powers_of_whole_numbers() -> None:
    with machine():
        base, exponent = torch.tensor([-2, -1, 1, 2, 0, -1]), torch.tensor([-1, -1, -2, -3, 0, -4])
        assert_same(base.to(AHBM) ** exponent.to(AHBM), base**exponent, "**")


def test_floats_beyond_a_narrow_type() -> None:
    x = torch.tensor([448.0, 449, 464, 465, 500, -1e9, 3.1, NAN, INF, -INF])
    with machine():
        for source in FLOATS:
            for target in (torch.float8_e4m3fn, torch.float8_e5m2):
                there = x.to(source).to(AHBM).to(target)
                assert_same(there.float(), x.to(source).to(target).float(), f"{source} to {target}")
        with pytest.raises(RuntimeError, match="value cannot be converted to type c10::Float8_e4m3fn without overflow"):
            torch.empty(2, dtype=torch.float8_e4m3fn, device=AHBM).fill_(500.0)
        # PyTorch makes unsigned bytes of floats by way of 64 bits; of other whole types it says nothing.
        assert_same(x[:7].to(AHBM).to(torch.uint8), x[:7].to(torch.uint8), "to uint8")
        leaf = torch.tensor([500.0, 3.0], device=AHBM, requires_grad=True)
        leaf.to(torch.float8_e4m3fn).float().sum().backward()
        assert leaf.grad.tolist() == [1.0, 1.0]


FRESH = """
x.flip(()) x.roll(0,0) x.repeat(1,1) f.pad(x,(0,0)) f.dropout(x,0.,True).clone() torch.cat([x]) x.rot90(0) x.tril(9)
x.index_select(0,torch.arange(3,device=x.device)) x.nan_to_num() x[0,0].sort()[0] x[0,0].cumsum(0) x[0,0].sum()
f.interpolate(x[None],scale_factor=1.)[0] x.clamp(min=-9) x.sum(()) x.round() x.sum_to_size(3,4).clone()
"""


@pytest.mark.parametrize("text", FRESH.split())
def test_a_result_is_no_view_of_an_operand(text: str) -> None:
    with machine():
        x = torch.arange(12.0, device=AHBM).reshape(3, 4)
        eval(text, SCOPE | {"x": x}).add_(1)
        assert x.cpu().flatten().tolist() == list(range(12))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm_without_eps_takes_that_of_f32(dtype: Any) -> None:
    x = (torch.arange(1, 9) * 0.02).to(dtype).reshape(1, 8)
    with machine():
        norms = [torch.nn.RMSNorm(8, dtype=dtype, device=device) for device in ("cpu", AHBM)]
        assert_same(norms[1](x.to(AHBM)).detach(), norms[0](x).detach(), "RMSNorm")


def attention_inputs() -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1, 1, 5, 8, generator=generator) for _ in range(3)]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("additive", "mask"),
        ("of truth values", "key"),
        *[pytest.param("additive", place, marks=SLOW) for place in ("query", "key")],
        pytest.param("of truth values", "query", marks=SLOW),
        *[pytest.param("none", place, marks=SLOW) for place in ("query", "key")],
    ],
)
def test_nan_goes_through_attention(kind: str, place: str) -> None:
    """There and back; also from a key that a mask hides: minus infinity is added to its NaN."""
    tensors = attention_inputs()
    mask = torch.zeros(1, 1, 5, 5).masked_fill(torch.eye(5) > 0, -INF)
    mask[0, 0, 3] = -INF
    if kind == "of truth values":
        mask = mask == 0
    if place == "mask":
        mask[0, 0, 1, 2] = NAN
    else:
        tensors[["query", "key"].index(place)][0, 0, 2, 0] = NAN

    def attend(device: Any) -> list[Any]:
        leaves = [x.clone().to(device).requires_grad_() for x in tensors]
        y = functional.scaled_dot_product_attention(*leaves, attn_mask=None if kind == "none" else mask.to(device))
        y.sum().backward()
        return [y.detach(), *[x.grad for x in leaves]]

    with machine(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for name, mine, wanted in zip("yqkv", attend(AHBM), attend("cpu"), strict=True):
            assert torch.equal(mine.isnan().cpu(), wanted.isnan()), name
            assert_same(mine.nan_to_num(), wanted.nan_to_num(), name)


def test_extremes_after_nan() -> None:
    with machine():
        for values in ([1.0, NAN, 3.0, NAN, 5.0], [NAN, 2.0, 1.0, 2.0, 3.0], [2.0, 1.0, 2.0, NAN, NAN]):
            x = torch.tensor(values)
            for call in (torch.cummax, torch.cummin):
                for mine, wanted in zip(call(x.to(AHBM), 0), call(x, 0), strict=True):
                    assert_same(mine, wanted, call.__name__)


# what is written in place


MIXED: list[tuple[Callable[[Any, Any], Any], Any, Any]] = [
    (lambda x, y: x.div_(y), torch.float16, torch.float32),
    (lambda x, y: x.add_(y), torch.bfloat16, torch.float32),
    (lambda x, y: x.mul_(y), torch.int8, torch.int64),
    (lambda x, y: (torch._foreach_div_([x], [y]), x)[1], torch.float16, torch.float32),
    (lambda x, y: torch._foreach_add([x], [y])[0], torch.float16, torch.float32),  # noqa: SLF001
    (lambda x, y: x.copy_(y), torch.uint8, torch.float32),
    (lambda x, y: x.pow_(2), torch.int16, torch.int16),
    (lambda x, y: x.clamp_(-2, 5), torch.uint8, torch.uint8),
    (lambda x, y: x.add_(200), torch.int8, torch.int8),
]


@pytest.mark.parametrize("case", range(len(MIXED)))
def test_an_operator_in_place_computes_in_the_type_of_its_operands(case: int) -> None:
    call, target, other = MIXED[case]
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(64, generator=generator) * 30 for _ in range(2))
    x, y = x.to(target), y.to(other)
    with machine():
        mine = call(x.to(AHBM), y.to(AHBM))
        wanted = call(x.clone(), y)
        assert mine.dtype is wanted.dtype
        assert torch.equal(mine.cpu(), wanted)


WRONG_IN_PLACE = """
i.div_(2) i.sqrt_() i.mul_(x) i.pow_(-1) x.sub_(x>0) x[:2].add_(i) x[:0].add_(i) x[0].add_(i) (x>0).neg_()
"""


@pytest.mark.parametrize("text", WRONG_IN_PLACE.split())
def test_an_operator_in_place_is_refused_in_pytorchs_words(text: str) -> None:
    with machine():
        errors = []
        for device in ("cpu", AHBM):
            x, i = (torch.ones(3, dtype=dtype, device=device) for dtype in (torch.float32, torch.int64))
            with pytest.raises(RuntimeError) as error:
                eval(text, {"x": x, "i": i})
            errors.append(str(error.value).partition("\n")[0])
            assert x.tolist() == [1.0] * 3
        assert errors[1] == errors[0]


OVERLAP = "more than one element of the written-to tensor refers to a single memory location. Please clone"
REFUSED = """
x.relu_() x.add_(1) x.copy_(y) x.mul_(y) x.normal_() x.bernoulli_(.5) x.clamp_(0,1) x.index_add_(0,n[:1],y[:1])
x.index_copy_(0,n[:1],y[:1]) x.scatter_(0,n[None,:2],1.) x.scatter_add_(0,n[None,:2],y) x.addmm_(y,y[:2]) x.cumsum_(0)
torch.add(y,1,out=x) torch.mm(y,y[:2],out=x) torch.cat([y[:1],y[1:]],out=x) torch.cumsum(y,0,out=x)
torch.arange(6.,out=x) torch.where(y>0,y,y,out=x) torch.sort(y,out=(x,torch.zeros(3,2,dtype=n.dtype,device=y.device)))
torch._foreach_add_([x],1.) x.lerp_(y,.5) torch.meshgrid(n,n,indexing='ij')[0].add_(1) x.masked_scatter_(y>0,y)
"""
ALLOWED = """
x.fill_(3) x.zero_() x.masked_fill_(m,2.) x.index_put_((n[:1],),y[0]) x.__setitem__(0,3.) x.__setitem__(m,3.)
x.index_fill_(0,n[:1],4.) x.unsqueeze_(0) s.add_(1) s.relu_() s.copy_(y2) h.add_(2)
x[:,:0].add_(1) b[:4].view(2,2).add_(1)
"""


def shared_operands(device: Any) -> dict[str, Any]:
    b = -torch.arange(1.0, 7.0).to(device)
    y = torch.arange(6.0).reshape(3, 2).to(device)
    return {
        "b": b,  # all that there is; what follows sees parts of it
        "h": b.view(torch.bfloat16)[4:].unfold(0, 4, 2),
        "x": b[:2].expand(3, 2),
        "s": b[2:].unfold(0, 2, 1),
        "y": y,
        "y2": y,
        "m": torch.tensor([[True, False], [False, False], [True, False]]).to(device),
        "n": torch.arange(3).to(device),
    }


@pytest.mark.parametrize("text", REFUSED.split())
def test_writes_to_elements_in_one_place_are_refused(text: str) -> None:
    with machine():
        for device in ("cpu", AHBM):
            operands = shared_operands(device)
            with pytest.raises(RuntimeError, match=OVERLAP):
                eval(text, SCOPE | operands)
            assert operands["b"].tolist() == [-1.0, -2, -3, -4, -5, -6]


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("text", ALLOWED.split())
def test_writes_to_elements_in_one_place_that_pytorch_allows(text: str) -> None:
    """Whether strides other than 0 let elements meet PyTorch does not ask."""
    with machine():
        there, here = shared_operands(AHBM), shared_operands("cpu")
        for operands in (there, here):
            eval(text, SCOPE | operands)
        assert there["b"].tolist() == here["b"].tolist()


def test_gradient_of_an_embedding_with_padding_at_0() -> None:
    with machine():
        grads = []
        for device in ("cpu", AHBM):
            torch.manual_seed(0)
            table = torch.nn.Embedding(4, 3, padding_idx=0).to(device)
            (table(torch.tensor([0, 2, 0, 3], device=device)) * 2).sum().backward()
            grads.append(table.weight.grad.cpu())
        assert not grads[0][0].any()
        assert torch.equal(grads[1], grads[0])


def test_a_tensor_without_axes_has_a_mean_along_its_first() -> None:
    with machine():
        assert torch.tensor(3.0).to(AHBM).mean(0).item() == 3.0


def test_what_is_not_0_fills_truth_values_with_true() -> None:
    with machine():
        assert torch.zeros(3, dtype=torch.bool).to(AHBM).fill_(300).tolist() == [True] * 3


def test_lists_of_integers_and_of_several_shapes_have_the_results_of_the_cpu() -> None:
    numbers, ones = torch.arange(6), torch.ones(3)
    with machine():
        roots = torch._foreach_sqrt([numbers.to(AHBM)])[0].cpu()  # noqa: SLF001 - an operator's name
        products = torch._foreach_mul([numbers.to(AHBM)], 2.5)[0].cpu()  # noqa: SLF001
        sums = torch._foreach_add([ones.to(AHBM)[0]], [ones.to(AHBM)])[0].cpu()  # noqa: SLF001
    assert torch.equal(roots, numbers.sqrt())
    assert torch.equal(products, numbers * 2.5)
    assert torch.equal(sums, ones[0] + ones)


def test_a_cell_without_bias_and_tensors_of_the_host() -> None:
    cell, x = torch.nn.LSTMCell(4, 3, bias=False), torch.randn(2, 4)
    expected = cell(x)[0].detach()
    with machine():
        assert torch.allclose(cell.to(AHBM)(x.to(AHBM))[0].detach().cpu(), expected, atol=1e-6)
        on_machine = torch.arange(6, device=AHBM)
        assert torch.empty_like(on_machine, device="cpu").shape == (6,)
        assert on_machine.new_empty(2, device="cpu").device.type == "cpu"


def test_norms_of_few_long_rows_gather_their_weight_in_each_cube() -> None:
    x, weight = torch.randn(3, 8192), torch.randn(8192)
    with machine("torch.cubes=16", topology=resolve_topology("default", ["system.sips.count=1"])):
        y = functional.layer_norm(x.to(AHBM), (8192,), weight.to(AHBM), weight.to(AHBM)).cpu()
    assert torch.allclose(y, functional.layer_norm(x, (8192,), weight, weight), atol=1e-5)
