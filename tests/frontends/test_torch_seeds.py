"""Random numbers on device ahbm by seed: those of PyTorch's CPU, whatever tensor they fill; tables of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from extras import need
from kernbench.runtime_api.context import RuntimeContext

need("torch")

import torch  # noqa: E402
from torch import distributions  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402

Draw = Callable[[Any], Any]
"""A function of a device that draws."""


@pytest.fixture
def context() -> Iterator[RuntimeContext[Any]]:
    with machine() as made:
        yield made


def _assert_same(draw: Draw, seed: int = 7, rtol: float = 0.0) -> None:
    """Drawing on the machine gives what it gives on the CPU, and leaves the generator as it does there."""
    torch.manual_seed(seed)
    wanted, state = draw(torch.device("cpu")), torch.get_rng_state()
    torch.manual_seed(seed)
    drawn = draw(AHBM)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(drawn.cpu(), wanted, rtol=rtol, atol=rtol)


LAYOUTS: dict[str, Draw] = {
    "few": lambda device: torch.zeros(15, device=device),
    "many": lambda device: torch.zeros(16, device=device),
    "rows": lambda device: torch.zeros(4, 33, device=device),
    "few, transposed": lambda device: torch.zeros(3, 4, device=device).t(),
    "transposed": lambda device: torch.zeros(5, 7, device=device).t(),
    "a column": lambda device: torch.zeros(20, 4, device=device)[:, 1],
    "permuted": lambda device: torch.zeros(3, 4, 5, device=device).permute(2, 0, 1),
    "channels last": lambda device: torch.zeros(2, 3, 4, 2, device=device).to(memory_format=torch.channels_last),
    "none": lambda device: torch.zeros(0, 3, device=device),
}
IN_PLACE: dict[str, Draw] = {
    "normal_": lambda x: x.normal_(1, 2),
    "uniform_": lambda x: x.uniform_(-1, 3),
    "exponential_": lambda x: x.exponential_(2),
    "geometric_": lambda x: x.geometric_(0.3),
    "cauchy_": lambda x: x.cauchy_(1, 2),
    "log_normal_": lambda x: x.log_normal_(),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "random_": lambda x: x.random_(-3, 9),
    "dropout": lambda x: functional.dropout(x.fill_(1), 0.5),
    "rand_like": torch.rand_like,
    "geometric": lambda x: torch.ops.aten.geometric(x, 0.3),
}


def _some(cases: dict[str, Draw], *fast: str) -> list[Any]:
    """Return the cases as parameters; those that are not named are slow."""
    return [pytest.param(case, id=name, marks=() if name in fast else pytest.mark.slow) for name, case in cases.items()]


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("fill", _some(IN_PLACE, "normal_", "geometric_", "dropout"))
def test_a_destination_of_any_strides_gets_the_numbers_of_the_cpu(fill: Draw) -> None:
    for layout in LAYOUTS.values():
        _assert_same(lambda device, layout=layout: fill(layout(device)))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_types_have_numbers_of_their_own(dtype: Any) -> None:
    _assert_same(lambda device: torch.zeros(5, 7, dtype=dtype, device=device).t().random_())
    if dtype.is_floating_point:
        _assert_same(lambda device: torch.zeros(5, 7, dtype=dtype, device=device).normal_())
        _assert_same(lambda device: torch.zeros(5, 7, dtype=dtype, device=device).t().normal_())


@pytest.mark.usefixtures("context")
def test_what_lies_between_the_elements_of_a_destination_stays() -> None:
    x = torch.full((20, 4), 5.0, device=AHBM)
    x[:, 1].geometric_(0.4)
    assert x.cpu()[:, [0, 2, 3]].eq(5).all()


@pytest.mark.usefixtures("context")
def test_results_that_are_written_to_a_tensor_of_the_program() -> None:
    def transposed(device: Any, dtype: Any = torch.float32) -> Any:
        return torch.empty(5, 6, dtype=dtype, device=device).t()

    _assert_same(lambda device: torch.rand(6, 5, out=transposed(device)))
    _assert_same(lambda device: torch.randn(6, 5, out=transposed(device)))
    _assert_same(lambda device: torch.randint(3, 9, (6, 5), out=transposed(device, torch.int64)))
    _assert_same(lambda device: torch.bernoulli(torch.full((6, 5), 0.4, device=device), out=transposed(device)))
    _assert_same(lambda device: torch.normal(torch.ones(6, 5, device=device), 2.0, out=transposed(device)))
    _assert_same(lambda device: torch.randperm(30, out=torch.empty(60, dtype=torch.int64, device=device)[::2]))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normal_takes_means_and_deviations_as_tensors(dtype: Any) -> None:
    means, deviations = torch.linspace(-2, 2, 20).to(dtype).reshape(4, 5), torch.linspace(0, 2, 5).to(dtype)
    _assert_same(lambda device: torch.normal(means.to(device), deviations.to(device)))
    _assert_same(lambda device: torch.normal(means.to(device).t(), 1.5))
    _assert_same(lambda device: torch.normal(-1.5, means.abs().to(device)))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial(dtype: Any, replacement: bool) -> None:
    weights = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)).to(dtype)
    weights[0, 5:] = 0
    for seed, count in ((1, 1), (2, 2), (3, 5)):
        _assert_same(lambda device, count=count: torch.multinomial(weights.to(device), count, replacement), seed)
        _assert_same(lambda device, count=count: torch.multinomial(weights.to(device)[1], count, replacement), seed)
    if replacement:
        _assert_same(lambda device: torch.multinomial(weights.t().contiguous().to(device).t(), 300, True))
    assert torch.multinomial(torch.ones(0, 4, device=AHBM), 3, replacement).shape == (0, 3)


@pytest.mark.usefixtures("context")
def test_weights_and_probabilities_that_pytorch_refuses() -> None:
    def refused_as_on_the_cpu(draw: Draw) -> None:
        with pytest.raises(RuntimeError) as wanted:
            draw(torch.device("cpu"))
        with pytest.raises(RuntimeError) as refused:
            draw(AHBM)
        assert str(refused.value) == str(wanted.value)

    state = torch.get_rng_state()
    for weights in ([1.0, -1.0], [0.0, 0.0], [1.0, float("inf")], [1.0, float("nan")]):
        for count in (1, 2):
            refused_as_on_the_cpu(
                lambda device, w=weights, n=count: torch.multinomial(torch.tensor(w, device=device), n, True)
            )
    refused_as_on_the_cpu(lambda device: torch.multinomial(torch.ones(2, device=device), 3))
    refused_as_on_the_cpu(lambda device: torch.multinomial(torch.ones(2, device=device), 0))
    refused_as_on_the_cpu(lambda device: torch.bernoulli(torch.full((2,), 1.5, device=device)))
    refused_as_on_the_cpu(lambda device: torch.normal(0.0, torch.tensor([1.0, -1.0], device=device)))
    refused_as_on_the_cpu(lambda device: torch.ones(5, device=device).expand(3, 5).normal_())
    assert torch.equal(torch.get_rng_state(), state)


DISTRIBUTIONS: dict[str, Draw] = {
    "Categorical": lambda device: distributions.Categorical(torch.tensor([0.1, 0.2, 0.7], device=device)),
    "Multinomial": lambda device: distributions.Multinomial(9, torch.tensor([0.1, 0.2, 0.7], device=device)),
    "Bernoulli": lambda device: distributions.Bernoulli(torch.tensor([0.1, 0.7], device=device)),
    "Normal": lambda device: distributions.Normal(torch.zeros(2, device=device), torch.ones(2, device=device)),
    "Cauchy": lambda device: distributions.Cauchy(torch.zeros(2, device=device), torch.ones(2, device=device)),
    "Exponential": lambda device: distributions.Exponential(torch.tensor([1.0, 2.0], device=device)),
    "Gamma": lambda device: distributions.Gamma(torch.ones(2, device=device), torch.ones(2, device=device)),
    "Poisson": lambda device: distributions.Poisson(torch.tensor([1.0, 20.0], device=device)),
    "Gumbel": lambda device: distributions.Gumbel(torch.zeros(2, device=device), torch.ones(2, device=device)),
}


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("distribution", _some(DISTRIBUTIONS, "Categorical", "Exponential", "Normal"))
def test_samples_of_distributions(distribution: Draw) -> None:
    for shape in ((), (7,)):
        _assert_same(lambda device, shape=shape: distribution(device).sample(shape), rtol=1e-6)


def test_times_with_and_without_data_are_equal_and_so_is_what_is_drawn_next() -> None:
    times, states = [], []
    for data in (True, False):
        with machine(data=data) as context:
            torch.manual_seed(3)
            weights = torch.rand(4, 50, device=AHBM)
            torch.multinomial(weights, 20, True)
            torch.multinomial(weights, 3)
            torch.normal(weights.t(), weights.t())
            weights.t().normal_()
            times.append(context.engine.now)
            states.append(torch.get_rng_state())
            assert not context.unmodelled
    assert times[0] == times[1]
    assert torch.equal(states[0], states[1])


WINDOWS = ("bartlett", "blackman", "hamming", "hann", "kaiser")


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_tables_of_the_host(name: str, context: RuntimeContext[Any]) -> None:
    window = getattr(torch, f"{name}_window")
    for length in (0, 1, 2, 17):
        for options in ({}, {"periodic": False}, {"dtype": torch.bfloat16}):
            there = window(length, device=AHBM, **options)
            assert torch.equal(there.cpu(), window(length, **options))
            assert there.device.type == "ahbm"
    assert torch.equal(
        torch.hamming_window(9, True, 0.5, 0.4, device=AHBM).cpu(), torch.hamming_window(9, True, 0.5, 0.4)
    )
    assert not context.unmodelled
    with pytest.raises(RuntimeError, match="expects floating point dtypes"):
        window(4, dtype=torch.int64, device=AHBM)


@pytest.mark.parametrize("p", [2, *[pytest.param(p, marks=pytest.mark.slow) for p in (1, 2.5, float("inf"))]])
def test_renorm_has_a_gradient(p: float, context: RuntimeContext[Any]) -> None:
    rows = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(1))
    factors = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(2))

    def gradient(device: Any, dtype: Any, dim: int) -> Any:
        x = rows.clone().to(device, dtype).requires_grad_()
        y = x.renorm(p, dim, 1.5)
        (y * factors.to(device, dtype)).sum().backward()
        assert x.grad is not None
        return torch.stack([y.detach(), x.grad]).cpu()

    for dim in (0, -1):
        torch.testing.assert_close(gradient(AHBM, torch.float32, dim), gradient("cpu", torch.float32, dim))
    torch.testing.assert_close(
        gradient(AHBM, torch.bfloat16, 1), gradient("cpu", torch.bfloat16, 1), atol=2**-8, rtol=2**-7
    )
    assert not context.unmodelled


@pytest.mark.usefixtures("context")
def test_renorm_in_place_keeps_small_slices_and_zeros() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    there = x.to(AHBM)
    there.renorm_(2, 0, 1.0)
    torch.testing.assert_close(there.cpu(), x.renorm(2, 0, 1.0))
    zeros = torch.zeros(3, 2, device=AHBM, requires_grad=True)
    zeros.renorm(2, 0, 1.0).sum().backward()
    assert zeros.grad is not None
    assert zeros.grad.eq(1).all()
    with pytest.raises(RuntimeError, match="expected maxnorm to be >= 0"):
        there.renorm(2, 0, -1.0)
