"""One token through layers of a decoder with a static cache."""

import torch
from torch.nn import functional

BATCH, HEADS, KV_HEADS, DEPTH, CACHE, WIDE, LAYERS = 1, 8, 2, 64, 128, 1024, 12
WIDTH = HEADS * DEPTH

torch.set_grad_enabled(False)
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)


class Layer:
    """A decoder layer: attention over a cache, and a gated feed-forward network."""

    def __init__(self) -> None:
        self.qkv = torch.empty((HEADS + 2 * KV_HEADS) * DEPTH, WIDTH)
        self.out = torch.empty(WIDTH, WIDTH)
        self.gate_up = torch.empty(2 * WIDE, WIDTH)
        self.down = torch.empty(WIDTH, WIDE)
        self.scale = torch.ones(WIDTH)
        self.keys = torch.zeros(BATCH, KV_HEADS, CACHE, DEPTH)
        self.values = torch.zeros(BATCH, KV_HEADS, CACHE, DEPTH)

    def __call__(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return the activations after the layer."""
        rows = functional.linear(functional.rms_norm(x, (WIDTH,), self.scale), self.qkv)
        heads = rows.view(BATCH, 1, HEADS + 2 * KV_HEADS, DEPTH).transpose(1, 2)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = functional.scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=True)
        x = x + functional.linear(y.transpose(1, 2).reshape(BATCH, 1, WIDTH), self.out)
        gate, up = functional.linear(functional.rms_norm(x, (WIDTH,), self.scale), self.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.down)


layers = [Layer() for _ in range(LAYERS)]
x = torch.zeros(BATCH, 1, WIDTH)
position = torch.arange(CACHE - 1, CACHE)
for layer in layers:
    x = layer(x, position)
torch.cuda.synchronize()
