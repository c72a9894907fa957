"""A device without a number is the current SIP, whatever names it; tensors of other classes lie on the machine, too."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

import kernbench.torch  # noqa: E402
from frontends.torch_programs import machine  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

TWO_SIPS = resolve_topology("default", ["system.sips.count=2", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])


@pytest.fixture(params=["ahbm", "cuda"])
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A machine of two SIPs, and what the program calls it."""
    with machine(topology=TWO_SIPS), kernbench.torch.as_cuda() if request.param == "cuda" else nullcontext():
        yield request.param


def module_of(name: str) -> Any:
    return torch.cuda if name == "cuda" else torch.get_device_module("ahbm")


def with_device(name: str) -> Any:
    with torch.device(name):
        return torch.tensor([1.0])


def with_default(name: str) -> Any:
    torch.set_default_device(name)
    try:
        assert torch.get_default_device().index == torch.ones(2).device.index
        return torch.tensor([1.0])
    finally:
        torch.set_default_device(None)


def lazily(name: str) -> Any:
    layer = nn.LazyLinear(2).to(name)
    return layer(torch.ones(2, 2, device=name))


def packed(name: str) -> Any:
    return nn.utils.rnn.pack_padded_sequence(torch.ones(2, 2, 1), [2, 2]).to(name).data


def moved(name: str) -> Any:
    """Call ``x.cuda()``, or the method of the device that PyTorch makes for any other."""
    x = torch.ones(2)
    return x.cuda() if name == "cuda" else vars(torch.Tensor)[name](x)


def module_moved(name: str) -> Any:
    layer = nn.Linear(2, 2)
    return (layer.cuda() if name == "cuda" else vars(nn.Module)[name](layer)).weight


WAYS: dict[str, Callable[[str], Any]] = {
    "to": lambda name: torch.ones(2).to(name),
    "to(device)": lambda name: torch.ones(2).to(torch.device(name)),
    "to(device=)": lambda name: torch.ones(2).to(device=name, dtype=torch.float16),
    "to(device, dtype)": lambda name: torch.ones(2).to(name, torch.float16),
    "to of SIP 0": lambda name: torch.ones(2, device=f"{name}:0").to(name),
    "method": moved,
    "module.to": lambda name: nn.Linear(2, 2).to(name).weight,
    "module.to_empty": lambda name: nn.Linear(2, 2, device="meta").to_empty(device=name).weight,
    "module's method": module_moved,
    "lazy module": lazily,
    "packed sequence": packed,
    "ones": lambda name: torch.ones(2, device=name),
    "rand": lambda name: torch.rand(2, device=name),
    "tensor": lambda name: torch.tensor([1.0], device=name),
    "as_tensor": lambda name: torch.as_tensor([1.0], device=name),
    "asarray": lambda name: torch.asarray(torch.ones(2).numpy(), device=name),
    "zeros_like": lambda name: torch.zeros_like(torch.ones(2), device=name),
    "new_zeros": lambda name: torch.ones(2).new_zeros(2, device=name),
    "new_tensor(device=)": lambda name: torch.ones(2, device=f"{name}:0").new_tensor([1.0], device=name),
    "new_tensor": lambda name: torch.ones(2, device=name).new_tensor([1.0]),
    "new": lambda name: torch.ones(2, device=name).new(3),
    "with torch.device": with_device,
    "set_default_device": with_default,
    "pinned": lambda name: torch.ones(2, pin_memory=False).to(name, non_blocking=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_device_without_a_number_is_the_current_one(name: str, way: str) -> None:
    module = module_of(name)
    module.set_device(1)
    assert WAYS[way](name).device == torch.device(name, 1)
    with module.device(0):
        assert WAYS[way](name).device == torch.device(name, 0)
    assert WAYS[way](name).get_device() == 1


def test_a_number_is_taken_as_it_is(name: str) -> None:
    module_of(name).set_device(1)
    x = torch.ones(2, device=f"{name}:0")
    ways = [
        x.new_zeros(2),
        x.new_tensor([1.0]),
        x.new(3),
        torch.ones(2).to(f"{name}:0"),
        torch.ones(2).to(0),
        x.clone(),
    ]
    assert [y.device.index for y in ways] == [0] * len(ways)
    y = torch.ones(2, device=f"{name}:1")
    assert y.to(name) is y


def test_the_accelerator_is_the_current_device(name: str) -> None:
    module = module_of(name)
    torch.accelerator.set_device_index(1)
    assert (module.current_device(), torch.accelerator.current_device_index()) == (1, 1)
    assert torch.accelerator.current_stream().device == module.Stream().device == torch.device(name, 1)
    before = torch.accelerator.memory_allocated()
    x = torch.ones(1024, device=name)
    assert (torch.accelerator.memory_allocated(), module.memory_allocated(1)) == (before + x.nbytes, before + x.nbytes)
    with torch.accelerator.device_index(0):
        assert torch.ones(2).to(name).get_device() == 0
    module.set_stream(module.Stream(0))
    assert module.current_device() == 0
    torch.accelerator.synchronize()


def test_a_model_is_trained_on_the_current_device(name: str) -> None:
    module_of(name).set_device(1)
    layer = nn.Linear(2, 2).to(name)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2).to(name)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["exp_avg"].device == torch.device(name, 1)


def test_what_is_loaded_onto_the_machine_is_refused(name: str) -> None:
    file = io.BytesIO()
    torch.save({"x": torch.ones(2)}, file)
    for location in (name, torch.device(name), f"{name}:1"):
        file.seek(0)
        with pytest.raises(InputError, match=f"torch.load: map_location is '{name}.* load with map_location='cpu'"):
            torch.load(file, map_location=location)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_functions_that_are_numbered_are_known_to_torchscript(name: str) -> None:
    assert torch.jit.script(plus_one)(torch.ones(2, device=name)).tolist() == [2, 2]


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor(1.0)


class Wrapped(torch.Tensor):
    """Holds another tensor, and carries out every operator on that."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls, elem: Any) -> Any:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, elem.size(), dtype=elem.dtype, device=elem.device)  # noqa: SLF001
        wrapper.elem = elem
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain_args, plain_kwargs = tree_map_only(Wrapped, lambda x: x.elem, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, func(*plain_args, **plain_kwargs))


def test_a_class_that_wraps_tensors_of_the_machine_has_gradients(name: str) -> None:
    elem = torch.arange(3.0, device=name)
    x = Wrapped(elem).requires_grad_()
    assert (x.device, x.is_cuda, elem.is_cuda) == (elem.device, name == "cuda", name == "cuda")
    weight = torch.full((3,), 2.0, device=name, requires_grad=True)
    (weight * x).sum().backward()
    assert isinstance(weight.grad, Wrapped)
    assert weight.grad.elem.tolist() == [0, 1, 2]
    assert isinstance(x.grad, Wrapped)
    assert x.grad.elem.tolist() == [2, 2, 2]


def test_operators_on_tensors_of_two_classes_are_for_the_one_that_wraps(name: str) -> None:
    elem = torch.arange(3.0, device=name)
    assert (elem + Wrapped(elem)).elem.tolist() == [0, 2, 4]
    assert torch.dot(elem, Wrapped(elem)).elem.item() == 5
    with pytest.raises(TypeError, match="Multiple dispatch failed"):
        torch.add(elem, Stranger(elem))


class Stranger(Wrapped):
    """Leaves every operator to others."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class Marked(torch.Tensor):
    """Has a slot, as DTensor."""

    __slots__ = ("mark", "unset")


def test_tensors_that_swap_what_they_are_swap_their_slots() -> None:
    x, y = torch.ones(2).as_subclass(Marked), torch.zeros(2).as_subclass(Marked)
    x.mark, y.mark, x.unset = "x", "y", 1
    torch.utils.swap_tensors(x, y)
    assert (x.mark, y.mark, y.unset, x.sum().item()) == ("y", "x", 1, 0)
    with pytest.raises(AttributeError):
        _ = x.unset
    with pytest.raises(RuntimeError, match="different slots"):
        torch.utils.swap_tensors(x, torch.ones(2))


def test_results_go_to_lists_of_tensors(name: str) -> None:
    x = torch.arange(12.0, device=name)
    sizes = [4, 8]
    outs = [torch.empty(n, device=name) for n in (4, 0)]  # one grows to be as large as its result
    assert torch.split_with_sizes_copy(x, sizes, 0, out=outs) is None
    assert [y.tolist() for y in outs] == [list(range(4)), list(range(4, 12))]
    rows = [torch.empty(6, device=name) for _ in range(2)]
    torch.unbind_copy(x.reshape(2, 6), out=rows)
    assert [y.tolist() for y in rows] == [list(range(6)), list(range(6, 12))]
    with pytest.raises(RuntimeError, match="expected an out= argument of size 2, got size 1"):
        torch.split_with_sizes_copy(x, sizes, 0, out=outs[:1])


def test_factories_fill_what_there_is(name: str) -> None:
    out = torch.empty(4, device=name)
    assert torch.arange(4, out=out) is out
    assert out.tolist() == [0, 1, 2, 3]
    assert torch.full((4,), 2.0, out=out).tolist() == [2] * 4
    assert torch.hann_window(4, device=name).tolist() == pytest.approx([0, 0.5, 1, 0.5])


def test_data_of_a_tensor_may_be_on_another_device() -> None:
    with machine():
        layer = torch.nn.Linear(3, 2)
        weight, elements = layer.weight, layer.weight.detach().clone()
        for there in ("ahbm", "cpu", "ahbm"):
            for parameter in layer.parameters():
                parameter.data = parameter.data.to(there)
            assert weight is layer.weight
            assert isinstance(weight, torch.nn.Parameter)
            assert weight.device.type == there
            assert torch.equal(weight.detach().cpu(), elements)
        layer(torch.ones(1, 3, device="ahbm")).sum().backward()
        assert weight.grad.tolist() == [[1.0] * 3] * 2
        x = torch.ones(2)
        x.data = torch.zeros(3)
        assert x.tolist() == [0.0] * 3
