"""Layers with a mixture of experts; each token goes to two experts."""

import torch
from torch.nn import functional

TOKENS, WIDTH, WIDE, EXPERTS, LAYERS = 64, 256, 512, 8, 8

torch.set_grad_enabled(False)
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)


class Experts:
    """A layer of experts with a router."""

    def __init__(self) -> None:
        self.router = torch.empty(EXPERTS, WIDTH)
        self.up = torch.empty(EXPERTS, WIDTH, WIDE)
        self.down = torch.empty(EXPERTS, WIDE, WIDTH)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations after the layer. Every expert takes an equal share of the tokens."""
        weights, _ = torch.topk(functional.softmax(functional.linear(x, self.router), -1), 2)
        for choice in range(2):
            groups = x.view(EXPERTS, TOKENS // EXPERTS, WIDTH)
            result = torch.bmm(functional.silu(torch.bmm(groups, self.up)), self.down)
            x = x + result.view(TOKENS, WIDTH) * weights[:, choice : choice + 1]
        return functional.rms_norm(x, (WIDTH,))


layers = [Experts() for _ in range(LAYERS)]
x = torch.zeros(TOKENS, WIDTH)
for layer in layers:
    x = layer(x)
torch.cuda.synchronize()
