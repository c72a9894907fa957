"""A transformer block on the ranks of a tensor-parallel group: attention and MLP, with one all-reduce after each."""

from __future__ import annotations

from kernbench.common.dtypes import Array
from kernbench.common.values import value
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import ops
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear
from kernbench.tp.ops import PeGrid
from kernbench.tp.parallel_state import parallel_state, split_evenly


@value(kw_only=True)
class MlpWeights:
    """The complete weights of an MLP: (hidden, ffn), (ffn,), (ffn, hidden), (hidden,)."""

    w_up: Array
    b_up: Array
    w_down: Array
    b_down: Array


@value(kw_only=True)
class AttentionWeights:
    """The complete weights of attention, each (hidden, hidden): the query, key, value and output projections."""

    wq: Array
    wk: Array
    wv: Array
    wo: Array


@value(kw_only=True)
class BlockWeights:
    """The complete weights of a transformer block. Each norm is (2, hidden): weight and bias."""

    norm1: Array
    attention: AttentionWeights
    norm2: Array
    mlp: MlpWeights


class ParallelMLP:
    """The MLP ``gelu(x W_up + b_up) W_down + b_down``. Columns of W_up and rows of W_down are split over ranks."""

    def __init__(
        self, hidden: int, ffn: int, dtype: object = "f16", dp: DPPolicy | None = None, torch: AnyContext | None = None
    ) -> None:
        self._torch = parallel_state(torch).torch
        self.up = ColumnParallelLinear(hidden, ffn, bias=True, dtype=dtype, dp=dp, torch=torch, name="up")
        self.down = RowParallelLinear(ffn, hidden, bias=True, dtype=dtype, dp=dp, torch=torch, name="down")

    def load(self, weights: MlpWeights) -> None:
        """Load this rank's shards of the complete weights."""
        self.up.load(weights.w_up, weights.b_up)
        self.down.load(weights.w_down, weights.b_down)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (..., hidden) from x (..., hidden). Input and output are bitwise equal on all ranks."""
        up = self.up(x)
        active = ops.gelu(up, self._torch)
        y = self.down(active)
        _free(up, active)
        return y

    __call__ = forward


class ParallelAttention:
    """Self-attention over the rows of x. Heads are split over ranks, and with them the columns of the projections."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        causal: bool = True,
        dtype: object = "f16",
        dp: DPPolicy | None = None,
        torch: AnyContext | None = None,
    ) -> None:
        group = parallel_state(torch)
        self._torch, self.causal = group.torch, causal
        split_evenly("hidden", hidden, heads, "heads")
        self.heads = split_evenly("heads", heads, group.world_size)
        self.q, self.k, self.v = (
            ColumnParallelLinear(hidden, hidden, dtype=dtype, dp=dp, torch=torch, name=name) for name in "qkv"
        )
        self.out = RowParallelLinear(hidden, hidden, dtype=dtype, dp=dp, torch=torch, name="o")

    def load(self, weights: AttentionWeights) -> None:
        """Load this rank's shards of the complete weights."""
        self.q.load(weights.wq)
        self.k.load(weights.wk)
        self.v.load(weights.wv)
        self.out.load(weights.wo)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (tokens, hidden) from x (tokens, hidden). Input and output are bitwise equal on all ranks."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        mixed = ops.attention(q, k, v, self.heads, self.causal, self._torch)
        y = self.out(mixed)
        _free(q, k, v, mixed)
        return y

    __call__ = forward


class LayerNorm:
    """A layer norm: rows with mean 0 and variance 1, times ``weight`` plus ``bias``, both (hidden,) on every rank."""

    def __init__(
        self,
        hidden: int,
        dtype: object = "f16",
        dp: DPPolicy | None = None,
        torch: AnyContext | None = None,
        name: str = "norm",
    ) -> None:
        self._torch = parallel_state(torch).torch
        grid = PeGrid.of_policy(dp, self._torch.topology)
        self.weight, self.bias = (
            self._torch.empty(hidden, dtype=dtype, dp=grid.copies(), name=f"{name}.{which}")
            for which in ("weight", "bias")
        )

    def load(self, weight: Array, bias: Array) -> None:
        """Load the weight and the bias, both (hidden,)."""
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (..., hidden) to a new tensor of the same shape."""
        return ops.layernorm(x, self.weight, self.bias, self._torch)

    __call__ = forward


class TransformerBlock:
    """A block as in GPT-2: ``y = x + attention(norm1(x))``, then ``y + mlp(norm2(y))``.

    ``dp`` is the placement of weights in a SIP.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        ffn: int,
        causal: bool = True,
        dtype: object = "f16",
        dp: DPPolicy | None = None,
        torch: AnyContext | None = None,
    ) -> None:
        self._torch = parallel_state(torch).torch
        self.norm1 = LayerNorm(hidden, dtype, dp, torch, "norm1")
        self.attention = ParallelAttention(hidden, heads, causal, dtype, dp, torch)
        self.norm2 = LayerNorm(hidden, dtype, dp, torch, "norm2")
        self.mlp = ParallelMLP(hidden, ffn, dtype, dp, torch)

    def load(self, weights: BlockWeights) -> None:
        """Load this rank's shards of the complete weights."""
        self.norm1.load(*weights.norm1)
        self.attention.load(weights.attention)
        self.norm2.load(*weights.norm2)
        self.mlp.load(weights.mlp)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (tokens, hidden) from x (tokens, hidden). Input and output are bitwise equal on all ranks."""
        normed = self.norm1(x)
        attended = self.attention(normed)
        y = ops.add(x, attended, self._torch)
        normed2 = self.norm2(y)
        moved = self.mlp(normed2)
        z = ops.add(y, moved, self._torch)
        _free(normed, attended, y, normed2, moved)
        return z

    __call__ = forward


def _free(*tensors: Tensor) -> None:
    for tensor in tensors:
        tensor.free()
