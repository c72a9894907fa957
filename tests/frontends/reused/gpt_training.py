"""Three steps of training a small GPT."""

import torch
from torch import nn
from torch.nn import functional

TOKENS, WIDTH, HEADS, LAYERS, VOCABULARY, STEPS = 32, 64, 2, 4, 128, 3


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations after the layer."""
        rows = self.qkv(self.first(x)).view(1, TOKENS, 3 * HEADS, WIDTH // HEADS)
        q, k, v = rows.transpose(1, 2).chunk(3, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(1, TOKENS, WIDTH))
        return x + self.feed(self.second(x))


class Gpt(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at every place."""
        x = self.tokens(ids) + self.places(torch.arange(TOKENS, device=ids.device))
        return self.head(self.norm(self.blocks(x)))


torch.manual_seed(0)
model = Gpt().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, VOCABULARY, (1, TOKENS + 1)).to("cuda")
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(ids[:, :-1]).view(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
