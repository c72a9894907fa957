"""Small models in plain PyTorch, as they are written for a GPU: nothing in them knows the machine."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RotaryAttention(nn.Module):
    """Causal attention with rotary positions, and keys and values shared by groups of heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q = nn.Linear(width, heads * self.size, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * self.size, bias=False)
        self.out = nn.Linear(heads * self.size, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, self.size).unbind(2)
        q, k, v = turn(q, angles), turn(k.transpose(1, 2), angles), v.transpose(1, 2)
        if cache is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(cache, (k, v), strict=True)) if cache else (k, v)
            cache[:] = [k, v]
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=length > 1, enable_gqa=self.heads != self.kv_heads
        )
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of elements by the angles of their position."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class GatedMlp(nn.Module):
    """The feed-forward part of a Llama: silu of a gate times a projection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture: each token goes to the two experts that its router likes most."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(GatedMlp(width, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == i)
            if rows.numel():
                out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, place].unsqueeze(-1))
        return out.reshape(x.shape)


class DecoderLayer(nn.Module):
    """Attention, then the feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attn = RotaryAttention(width, heads, kv_heads)
        self.mlp = Experts(width, hidden, experts) if experts else GatedMlp(width, hidden)

    def forward(self, x: Tensor, angles: Tensor, cache: list[Tensor] | None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), angles, cache)
        return x + self.mlp(self.mlp_norm(x))


class StaticDecoderLayer(nn.Module):
    """A decoder layer for one token, which writes keys and values to a cache of constant size."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.layer = DecoderLayer(width, heads, kv_heads, hidden, 0)

    def forward(
        self, x: Tensor, angles: Tensor, keys: Tensor, values: Tensor, position: Tensor, mask: Tensor
    ) -> Tensor:
        attn = self.layer.attn
        h = self.layer.attn_norm(x)
        q = attn.q(h).view(1, 1, attn.heads, attn.size).transpose(1, 2)
        k, v = attn.kv(h).view(1, 1, 2, attn.kv_heads, attn.size).unbind(2)
        q, k = turn(q, angles), turn(k.transpose(1, 2), angles)
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v.transpose(1, 2))
        y = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        x = x + attn.out(y.transpose(1, 2).reshape(1, 1, -1))
        return x + self.layer.mlp(self.layer.mlp_norm(x))


class Llama(nn.Module):
    """A decoder of Llama's kind; ``experts``: a mixture of so many in each layer."""

    def __init__(
        self, vocab: int, width: int = 64, layers: int = 2, heads: int = 4, kv_heads: int = 2, experts: int = 0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, kv_heads, 2 * width, experts) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.frequencies: Tensor
        half = width // heads // 2
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(half) / half), persistent=False)

    def forward(self, ids: Tensor, caches: list[list[Tensor]] | None = None, first: int = 0) -> Tensor:
        positions = torch.arange(first, first + ids.shape[1], device=ids.device)
        angles = positions[:, None] * self.frequencies
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, angles, None if caches is None else caches[i])
        return self.head(self.norm(x))

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int, temperature: float = 0.0) -> Tensor:
        """Append ``count`` tokens: the likeliest, or with a temperature drawn at random."""
        caches: list[list[Tensor]] = [[] for _ in self.layers]
        step, first = ids, 0
        for _ in range(count):
            logits = self(step, caches, first)[:, -1]
            first += step.shape[1]
            if temperature:
                step = torch.multinomial((logits / temperature).softmax(-1), 1)
            else:
                step = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, step], 1)
        return ids


class GptBlock(nn.Module):
    """A block of a GPT: layer norm, attention of many heads, layer norm, GELU between two projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.ln_1(x)).split(width, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x))))


class Gpt(nn.Module):
    """A GPT whose head is its table of tokens."""

    def __init__(self, vocab: int, width: int = 64, layers: int = 2, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Vit(nn.Module):
    """A vision transformer: patches by a convolution, a class token, encoder layers."""

    def __init__(self, size: int = 32, patch: int = 8, width: int = 64, layers: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.layers(x)[:, 0])
