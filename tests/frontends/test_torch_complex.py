"""Complex tensors: pairs of f32 on the machine, with the numbers of PyTorch's CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402, F401

from torch import Tensor  # noqa: E402

from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402

X, Y = (torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z *= y
    z[1] += y[0]
    z[2].zero_()
    return z


CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, y: x * y,
    "product with a row": lambda x, y: x.T * y[:, 1],
    "product with a number": lambda x, _: x * (2 - 1j) + x * 3,
    "product with real numbers": lambda x, y: x * y.real,
    "quotient": lambda x, _: x / 2,
    "sum and difference": lambda x, y: (x + y) - 2 * (x - y),
    "conjugate": lambda x, y: x.conj() * y.mH.mH,
    "negative": lambda x, _: -x,
    "sums": lambda x, _: torch.cat([x.sum(0), x.sum(-1), x.sum().view(1)]),
    "views": lambda x, y: torch.view_as_complex(torch.view_as_real(x)[1:] * 2)[:, ::2] + y.imag[:2, ::2] * y[1:, 1::2],
    "parts": lambda x, y: torch.complex(x.real, y.imag) + torch.polar(x.real.abs(), y.real),
    "in place": in_place,
    "joined": lambda x, y: torch.stack([x, y, torch.zeros_like(x)]),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_have_the_numbers_of_the_cpu(name: str) -> None:
    with machine():
        result = CASES[name](X.to(AHBM), Y.to(AHBM)).cpu()
    expected = CASES[name](X, Y)
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected.resolve_conj(), atol=1e-6, rtol=1e-6)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of neighbours as rotary embeddings of positions do."""
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * angles[: x.shape[1], None]
    return torch.view_as_real(turned).flatten(3).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_embeddings_have_the_gradients_of_the_cpu(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(2)).to(dtype)
    angles = torch.polar(torch.ones(6, 4), torch.arange(24.0).view(6, 4) / 7)

    def gradients(device: str) -> tuple[Tensor, Tensor]:
        leaf = x.to(device).requires_grad_()
        y = rotate(leaf, angles.to(device))
        (y * y[:, :, :1]).sum().backward()
        assert leaf.grad is not None
        return y.detach().cpu(), leaf.grad.cpu()

    with machine() as context:
        results = gradients(AHBM)
        assert not context.unmodelled
    torch.testing.assert_close(results, gradients("cpu"))


def test_an_operator_without_a_rule_is_refused() -> None:
    with (
        machine(),
        pytest.raises(InputError, match=r"test_torch_complex.py:\d+: exp of torch.complex64: .* mul, div, "),
    ):
        X.to(AHBM).exp()
