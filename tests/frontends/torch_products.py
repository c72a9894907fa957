"""Random products of PyTorch on random small machines, from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import kernbench.torch  # noqa: F401
from interventions import Experiment, spread

SIDES = (8, 16, 32, 64, 96, 128, 200, 256, 384, 512)
FORMS = ("mm", "mm", "linear", "linear", "mm of a transposed", "bmm", "gelu of a linear", "two linears")
TYPES = (torch.float16, torch.float16, torch.bfloat16, torch.float32)
MACHINES = ("one-cube", "one-cube", "default", "edge")


def random_torch_product(seed: int) -> Experiment:
    """Return a product of PyTorch, and the machine it runs on, of a seed."""
    chance = np.random.default_rng(seed)
    m, k, n = (int(chance.choice(SIDES)) for _ in range(3))
    form, dtype = str(chance.choice(FORMS)), TYPES[chance.integers(len(TYPES))]
    machine = spread(str(chance.choice(MACHINES)))

    def program(_: Any) -> None:
        torch.manual_seed(seed)
        x, w = torch.randn(m, k).to(dtype).to("ahbm"), torch.randn(n, k).to(dtype).to("ahbm")
        match form:
            case "mm":
                torch.mm(x, w.t().contiguous())
            case "mm of a transposed":
                torch.mm(x.t().contiguous().t(), w.t())
            case "bmm":
                torch.bmm(x.expand(4, m, k).contiguous(), w.t().expand(4, k, n).contiguous())
            case "linear":
                torch.nn.functional.linear(x, w)
            case "gelu of a linear":
                torch.nn.functional.gelu(torch.nn.functional.linear(x, w))
            case "two linears":
                torch.nn.functional.linear(torch.nn.functional.linear(x, w), w.t().contiguous())

    return Experiment(program, machine)
