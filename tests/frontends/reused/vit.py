"""Images through a vision transformer."""

import torch
from torch import nn
from torch.nn import functional

IMAGES, SIDE, PATCH, WIDTH, HEADS, LAYERS = 2, 64, 8, 192, 3, 8


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations after the layer."""
        n, tokens, _ = x.shape
        rows = self.qkv(self.first(x)).view(n, tokens, 3 * HEADS, WIDTH // HEADS)
        q, k, v = rows.transpose(1, 2).chunk(3, 1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, WIDTH))
        return x + self.feed(self.second(x))


class Vit(nn.Module):
    """A classifier of images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


torch.set_grad_enabled(False)
model = Vit().to("cuda", torch.bfloat16)
model(torch.zeros(IMAGES, 3, SIDE, SIDE, device="cuda", dtype=torch.bfloat16))
torch.cuda.synchronize()
