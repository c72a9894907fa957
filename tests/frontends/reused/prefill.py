"""A prompt through layers of a decoder."""

import torch
from torch.nn import functional

TOKENS, WIDTH, HEADS, LAYERS = 128, 256, 4, 8

torch.set_grad_enabled(False)
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)


class Layer:
    """A decoder layer: causal attention, and a feed-forward network."""

    def __init__(self) -> None:
        self.qkv = torch.empty(3 * WIDTH, WIDTH)
        self.out = torch.empty(WIDTH, WIDTH)
        self.up = torch.empty(4 * WIDTH, WIDTH)
        self.down = torch.empty(WIDTH, 4 * WIDTH)
        self.scale = torch.ones(WIDTH)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations after the layer."""
        rows = functional.linear(functional.rms_norm(x, (WIDTH,), self.scale), self.qkv)
        q, k, v = rows.view(1, TOKENS, 3 * HEADS, WIDTH // HEADS).transpose(1, 2).chunk(3, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.linear(y.transpose(1, 2).reshape(1, TOKENS, WIDTH), self.out)
        return x + functional.linear(
            functional.gelu(functional.linear(functional.rms_norm(x, (WIDTH,), self.scale), self.up)), self.down
        )


layers = [Layer() for _ in range(LAYERS)]
x = torch.zeros(1, TOKENS, WIDTH)
for layer in layers:
    x = layer(x)
torch.cuda.synchronize()
