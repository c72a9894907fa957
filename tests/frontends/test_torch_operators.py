"""PyTorch's operators on the machine against PyTorch on the CPU: numbers, shapes, types; none is the host's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, AHEAD, machine  # noqa: E402
from kernbench.common.dtypes import F32  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.common.operators import passes  # noqa: E402
from kernbench.frontends.torch.pointwise import apply_all  # noqa: E402
from kernbench.kernels.elementwise import Expression, Input, Intermediate, Operation  # noqa: E402
from kernbench.kernels.functions import call  # noqa: E402

SCOPE: dict[str, Any] = {"torch": torch, "f": functional}
ELEMENTS = """
a+b  a+c  a-2  2-a  a*c  a/b  a//0.3  a%0.3  i//2  i%3  -i//2  a**2  a**3  a.abs()**0.5  2**a  a.abs()**b  a<b  a==a
(a>0)&(b>0)  ~(a>0)  i&1  i<<1  a.T+b.T  a[1:4,::2]*2  torch.where(a>0,a,b)  torch.where(a>0,a,0.)
torch.where(a>0,1.,0.)  a.masked_fill(a>0,-1.)  a.clamp(-0.5,0.5)  torch.clamp(a,min=0)  torch.maximum(a,b)
a.half()  a.bool()  i.float()  a.long()  a.exp()  a.abs().log()  a.sin()  a.tanh()  a.sigmoid()  a.erf()  a.round()
a.round(decimals=2)  (a*100).round(decimals=-1)  a.sign()  a.reciprocal()  a.isnan()  f.gelu(a)
f.gelu(a,approximate='tanh')  f.silu(a)  f.softplus(a)  f.mish(a)
f.elu(a)  f.leaky_relu(a)  f.hardswish(a)  f.glu(a[:,:6])  a.lerp(b,0.3)  torch.addcmul(a,a,b,value=0.5)
torch.addcdiv(a,a,b.abs()+1)  torch.atan2(a,b)  a.half()+b.half()
"""
AXES = """
a.sum()  a.sum(0)  a.sum(1,keepdim=True)  t.sum((0,2))  a.mean()  a.mean(1)  a.amax(0)  a.max()  a.max(1)  a.min(0)
a.argmax()  a.argmax(1)  t.argmin(0)  a.softmax(1)  a.softmax(0)  a.log_softmax(-1)  t.cumsum(1)  i.cumsum(0)
a.sort(1)  a.sort(0,descending=True)  t.topk(3)  t.topk(2,dim=0)  a.std()  a.var(1)  t.norm()  torch.logsumexp(a,1)
(a>0).any()  (a>0).all(1)  f.layer_norm(a,(7,),c,c)  f.rms_norm(a,(7,),c)  f.group_norm(t,3)
f.batch_norm(t,None,None,training=True)  a.prod(1)  i.sum()  torch.arange(4000.,device=a.device).sum()
a.cummax(1)  a.cummin(0)  i.cummax(1)  (a/(a<1)).cummax(1)  a.median()  a.median(1)  a.median(0,keepdim=True)
(a/(a<1)*0).median(1)  a.nanmedian()  (a/(a<1)*0+a).nanmedian(1)  a.kthvalue(2,1)  a.quantile(0.5)  torch.histc(a)
i.flatten().bincount()  torch.equal(a,a)
torch.allclose(a,a)  torch.allclose(a,b)  i.flatten().bincount(weights=c[:6])
"""
PRODUCTS = """
a@b.T  a@c  torch.outer(c,c)  torch.addmm(c.expand(5,7),a,a.T@a,beta=0.5,alpha=2)  t@t.transpose(1,2)
f.linear(t,t[0])  f.linear(a,a,a.sum(1))  torch.einsum('bij,bkj->bik',t,t)
torch.baddbmm(t@t.transpose(1,2),t,t.transpose(1,2),beta=0.5)
f.conv2d(t[None],torch.ones(8,4,3,3).to(a.device),stride=2,padding=1)
f.conv1d(t,torch.ones(9,2,5).to(a.device),groups=3)
f.conv_transpose2d(t[None,:,:4,:8],torch.ones(4,2,3,3).to(a.device),stride=2)  f.avg_pool2d(t[None],2)
f.max_pool2d(t[None],2)  f.scaled_dot_product_attention(q,q,q)  f.scaled_dot_product_attention(q,q,q,is_causal=True)
f.scaled_dot_product_attention(q,q,q,attn_mask=torch.ones(6,6,device=a.device,dtype=torch.bool).tril())
f.scaled_dot_product_attention(q,q,q,attn_mask=a.sum()*torch.ones(1,1,6,6,device=a.device))
f.scaled_dot_product_attention(q,q[:,:2],q[:,:2],enable_gqa=True)  f.scaled_dot_product_attention(q[0],q[0],q[0])
"""
INDICES = """
f.embedding(i,a)  f.one_hot(i,5)  a[i]  a[i[0],i[1]]  a[:,i[0]]  t[i[0]%4,:,i[1]]  t[:,i[0],i[1]]  a[a>0]
torch.nonzero(a>0)  torch.gather(a,1,i)  a.index_select(0,i[0])  torch.zeros(5,7,device=a.device).scatter_(1,i,1.)
torch.zeros(5,7,device=a.device).scatter_add(1,i,a[:2,:3])
torch.zeros(5,7,device=a.device).scatter_reduce(1,i,a[:2,:3],'sum')
torch.zeros(5,7,device=a.device).scatter_reduce(1,i*0,a[:2,:3],'amin',include_self=False)
torch.ones(5,7,device=a.device).scatter_reduce(1,i*0,a[:2,:3],'mean')
torch.ones(5,7,device=a.device).scatter_reduce(1,i*0,a[:2,:3],'prod')
a.scatter_reduce(0,i[:1]*0,b[1:2,:3],'prod',include_self=False)  a.masked_select(a[0]>0)  a.masked_scatter(a>0,b)
torch.ones(5,7,device=a.device).scatter_reduce(1,i,a[:2,:3],'amax')  i.unique(return_inverse=True,return_counts=True)
a.unique()  (i%2).unique(dim=1,return_inverse=True,return_counts=True)  (i%2).unique_consecutive(dim=1)
i.flatten().unique_consecutive(return_counts=True)  torch.eye(4,device=a.device)
torch.eye(3,5,device=a.device,dtype=torch.int64)  torch.linspace(0,1,5,device=a.device)
torch.linspace(2,2,1,out=torch.empty(0,device=a.device))  torch.logspace(0,1,5,device=a.device)
torch.zeros(5,7,device=a.device).index_add_(0,i[0],b[:3])  a.clone().index_put_((i[0],),b[:3])
a.clone().index_put_((i[0],i[1]),c[:3],accumulate=True)  a.index_copy(0,i[0],b[:3])  torch.cat([a,b],1)
torch.stack([a,b])  a.repeat(2,3)  a.repeat_interleave(2,0)  a.flip(0)  a.roll((1,-2),(0,1))  a.tril()  a.triu(1)
torch.arange(5,device=a.device)  torch.arange(0,1,0.25,device=a.device)  torch.full((2,2),3.5,device=a.device)
a.T.contiguous()  a.T.reshape(-1)  f.pad(a,(1,2,0,1))  f.pad(a,(-1,2))  a.unfold(1,3,2)  a.split(2,1)[1]*1
a.diagonal()*2  f.cross_entropy(a,i.flatten()[:5])  f.mse_loss(a,b)  f.l1_loss(a,b)
f.binary_cross_entropy_with_logits(a,(b>0).float())
"""

EDGES = """
a.norm(0)  a.half().mul(300).norm()  a.half().mul(500).std()  a.half()*0.001  a.half()*70000  a.bfloat16().var()
a%0.1  a//0.1  torch.fmax(a/0.,b)  (a*0)**0  a.sum(dtype=torch.int64)  a[0,0].sum()  a[0,0].max()  a[0,0].softmax(0)
a[0,0].norm()  a[:0].sum(0)  a[:0].mean()  (a[:0]>0).all()  torch.addmm(c,a[:,:0],a[:0])  a[torch.tensor([0,2])]
a[:,torch.arange(7)>3]  a.view(torch.int32)  a.half().view(torch.int16)
torch.add(a,b,out=torch.empty(0,device=a.device))  torch.mm(a,b.T,out=torch.empty(5,5,device=a.device))
torch.cat([a,b],out=torch.empty(0,device=a.device))  torch.where(a>0,torch.tensor(1.),torch.tensor(2.))
torch.where(a>0,a,torch.tensor(2.))
f.scaled_dot_product_attention(q,q,q,attn_mask=a[:1,:1]*torch.zeros(6,6,device=a.device)+low)
f.scaled_dot_product_attention(q,q,q,attn_mask=low==0)
f.scaled_dot_product_attention(q,q[:,:1],q[:,:1],attn_mask=low==0)
f.scaled_dot_product_attention(q.repeat(2,1,1,1),q,q)
f.scaled_dot_product_attention(q,q[:,:,:0],q[:,:,:0])
torch.addbmm(a[:4,:4],t[:,:4],t[:,:4].mT)  a.signbit()  f.hardshrink(a)
i[:0].median()  a[0,0].clone().scatter_reduce(0,i[0,0]*0,b[0,0],'sum')
"""


def operands(device: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    a, b, c, t, q = (torch.randn(n, generator=generator) for n in ((5, 7), (5, 7), (7,), (4, 6, 33), (1, 4, 6, 8)))
    i = torch.tensor([[1, 3, 0], [2, 2, 4]])
    low = torch.zeros(6, 6).masked_fill(torch.eye(6) > 0, float("-inf"))
    low[2] = float("-inf")  # a query without keys
    tensors = dict(zip("abctqi", (a, b, c, t, q, i), strict=True)) | {"low": low}
    return {name: x.to(device) for name, x in tensors.items()}


def check(text: str) -> None:
    """What the expressions of a table give on the machine is what they give on the CPU."""
    for expression in text.split():
        with machine() as context:
            wanted = eval(expression, SCOPE | operands("cpu"))
            found = eval(expression, SCOPE | operands(AHBM))
            pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
            for mine, other in pairs:
                mine_here = mine.cpu() if isinstance(mine, torch.Tensor) else mine
                torch.testing.assert_close(
                    mine_here, other, atol=2e-5, rtol=1e-4, equal_nan=True, msg=lambda why, e=expression: f"{e}: {why}"
                )
            assert not context.unmodelled, expression


@pytest.mark.parametrize(
    "table", [ELEMENTS, AXES, PRODUCTS, INDICES, EDGES], ids=["elements", "axes", "products", "indices", "edges"]
)
def test_operators_give_what_pytorch_gives(table: str) -> None:
    check(table)


def test_ramps_of_whole_numbers_are_those_of_the_host() -> None:
    with machine():
        for call, end in ((torch.linspace, -10), (torch.logspace, 2.5)):
            wanted = call(0, end, 4, dtype=torch.int64)
            assert torch.equal(call(0, end, 4, dtype=torch.int64, device=AHBM).cpu(), wanted)


@pytest.mark.parametrize("call", ["cummax(5)", "sort(5)", "median(5)", "kthvalue(1,5)", "max(5)"])
def test_axes_that_are_not_there_are_refused(call: str) -> None:
    with machine(), pytest.raises(IndexError, match="Dimension out of range"):
        eval(f"a.{call}", operands(AHBM))


def test_a_copy_of_a_transposed_tensor_stores_in_the_order_of_the_target() -> None:
    with machine():
        x, target = torch.arange(12.0).reshape(3, 4), torch.zeros(4, 6, device=AHBM)
        target[:, ::2].copy_(x.to(AHBM).T)
        assert torch.equal(target[:, ::2].cpu(), x.T)
        assert not target[:, 1::2].cpu().any()


def test_a_turned_copy_moves_pieces_of_many_elements() -> None:
    """Not columns of a few, each a burst of which most is for nothing."""

    def took(shape: tuple[int, int], turned: bool) -> float:
        with machine(data=False) as context:
            x = torch.empty(shape, dtype=torch.float16, device=AHBM)
            (x.T if turned else x).clone(memory_format=torch.contiguous_format)
            return max(context.traces[-1].pe_exec_ns.values())

    assert took((1024, 128), turned=True) < 1.25 * took((1024, 128), turned=False)

    def subtracted(column: bool) -> float:
        with machine(data=False) as context:
            x, mean = torch.empty(256, 4096, device=AHBM), torch.empty(256, device=AHBM)
            x.sub_(mean[:, None] if column else 1.0)
            return max(context.traces[-1].pe_exec_ns.values())

    assert subtracted(column=True) < 1.1 * subtracted(column=False)  # what repeats along rows cuts none
    with machine():
        x = torch.arange(3.0 * 301 * 67).reshape(3, 301, 67)
        for order in ((0, 2, 1), (2, 1, 0), (2, 0, 1)):
            assert torch.equal(x.to(AHBM).permute(order).contiguous().cpu(), x.permute(order))


def test_sorting_goes_over_its_bytes_as_often_as_a_network_has_steps() -> None:
    def took(n: int, call: Callable[[Any], object]) -> float:
        with machine(data=False) as context:
            x = torch.empty(1, n, device=AHBM)
            call(x)
            return max(context.traces[-1].pe_exec_ns.values())

    assert [passes("argsort", n) for n in (1, 2, 3, 8, 1024, 1025)] == [1, 1, 3, 6, 55, 66]
    assert passes("add", 1024) == 1
    n, spec = 65536, machine_spec().pe.math
    bytes_ns = n * 4 / spec.bytes_per_ns
    more = took(n, lambda x: x.sort()) - took(n, lambda x: x.cumsum(1))
    assert more > (passes("argsort", n) - 1) * bytes_ns


def machine_spec() -> Any:
    with machine(data=False) as context:
        return context.topology


def test_an_index_beyond_its_axis_is_an_error() -> None:
    with machine():
        table = torch.zeros(4, 2, device=AHBM)
        with pytest.raises(InputError, match="embedding: index 4 is not within an axis of 4"):
            functional.embedding(torch.tensor([1, 4], device=AHBM), table)
        with pytest.raises(InputError, match="gather: index -1 is not within an axis of 4"):
            table.gather(0, torch.tensor([[0, -1]], device=AHBM))
        assert table[torch.tensor([-1], device=AHBM)].shape == (1, 2)


def test_dropout_keeps_what_the_hosts_generator_says() -> None:
    with machine():
        torch.manual_seed(2)
        x = torch.ones(4000, device=AHBM, requires_grad=True)
        y = functional.dropout(x, 0.25)
        kept = y.detach().cpu() != 0
        assert 0.7 < kept.float().mean() < 0.8
        torch.testing.assert_close(y.detach().cpu()[kept], torch.full((int(kept.sum()),), 4 / 3))
        y.sum().backward()
        assert torch.equal(x.grad.cpu() != 0, kept)


def test_gradients_of_transposed_convolutions_are_products() -> None:
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    x = torch.randn(2, 4, 5, 4)
    with machine() as context:
        there = copy.deepcopy(layer).to(AHBM)
        theirs, mine = x.clone().requires_grad_(), x.to(AHBM).requires_grad_()
        layer(theirs).pow(2).sum().backward()
        there(mine).pow(2).sum().backward()
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)
        for p, q in zip(there.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-4)
        assert not context.unmodelled


@pytest.mark.parametrize(
    "call",
    [
        "f.interpolate(x,scale_factor=1.7)",
        "f.interpolate(x,size=(9,5),mode='bilinear',align_corners=True)",
        "f.adaptive_avg_pool2d(x,(4,3))",
        "torch._weight_norm(x,x[:1,:1,:,:1],2)",
    ],
)
def test_gradients_of_scaled_images_and_weights(call: str) -> None:
    x = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    with machine() as context:
        found = []
        for each in (x.clone(), x.to(AHBM)):
            eval(call, SCOPE | {"x": each.requires_grad_()}).sin().sum().backward()
            found.append(each.grad.cpu())
        torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)
        assert not context.unmodelled


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_derivatives_forward() -> None:
    def derive(x: Any) -> Any:
        return torch.func.jvp(lambda y: (y @ y.T).exp(), (x,), (torch.ones_like(x),))[1]

    with machine() as context:
        x = torch.randn(3, 3)
        torch.testing.assert_close(derive(x.to(AHBM)).cpu(), derive(x), atol=1e-4, rtol=1e-4)
        assert not context.unmodelled


@pytest.mark.parametrize("call", ["a+b", "a@b", "torch.cat([a,b])", "f.embedding(i,a)", "b.add_(a)", "f.mse_loss(a,b)"])
def test_operands_on_two_devices_are_refused(call: str) -> None:
    with machine(AHEAD):
        there = {"a": torch.ones(2, 2, device=AHBM), "b": torch.ones(2, 2), "i": torch.tensor([0, 1])}
        with pytest.raises(InputError, match=r"of a tensor on ahbm:0 and one on cpu, must be on one device; move"):
            eval(call, SCOPE | there)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_has_no_strides_is_refused() -> None:
    with machine():
        table = torch.nn.Embedding(4, 2, sparse=True, device=AHBM)
        with pytest.raises(InputError, match=r"sparse and nested tensors are not on the machine; use dense"):
            table(torch.tensor([1], device=AHBM)).sum().backward()
        with pytest.raises(InputError, match=r"operator sin: sparse and nested tensors are not"):
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=AHBM).sin()
        with pytest.raises(TypeError, match=r"numpy\(\) of a tensor on ahbm:0: it has to be on the host first"):
            table.weight.detach().numpy()
        assert table.weight.numpy(force=True).shape == (4, 2)


def test_data_of_a_tensor_is_what_the_program_sets() -> None:
    with machine():
        layer = torch.nn.Linear(3, 2, bias=False).to(AHBM)
        layer.weight.data = torch.full((2, 3), 0.5, device=AHBM)
        assert layer(torch.ones(1, 3, device=AHBM)).tolist() == [[1.5, 1.5]]
        layer.weight.data = layer.weight.data.half()
        assert layer.weight.tolist() == [[0.5] * 3] * 2


def test_lists_of_tensors_are_one_launch() -> None:
    with machine() as context:
        xs = [torch.ones(n, device=AHBM) for n in (3, 200, 7)]
        before = sum(each.phase == "launch" for each in context.traces)
        torch._foreach_mul_(xs, 2.0)
        norms = torch._foreach_norm(xs)  # noqa: SLF001
        launches = sum(each.phase == "launch" for each in context.traces) - before
        assert [round(x.item(), 3) for x in norms] == [3.464, 28.284, 5.292]
    assert launches == 3


def test_an_expression_of_several_operations_and_results_is_one_launch() -> None:
    expression = Expression(
        (
            Operation(call("mul"), (Input(0), 1.702)),
            Operation(call("sigmoid"), (Intermediate(0),)),
            Operation(call("mul"), (Input(0), Intermediate(1))),
        ),
        (Intermediate(2), Intermediate(1)),
    )
    x = torch.randn(33, 130).bfloat16()
    with machine() as context:
        tensor = x.to(AHBM)
        product, gate = torch.empty_like(tensor), torch.empty(x.shape, device=AHBM)
        before = sum(request.phase == "launch" for request in context.traces)
        apply_all("quick_gelu", [(expression.computed_in(F32), (product, gate), (tensor,), ())])
        assert sum(request.phase == "launch" for request in context.traces) == before + 1
        torch.testing.assert_close(gate.cpu(), torch.sigmoid(1.702 * x.float()))
        torch.testing.assert_close(product.cpu(), (x.float() * torch.sigmoid(1.702 * x.float())).bfloat16())
