"""Data, ranks, references and verdicts shared by several benches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels.gemm import qkv_composite
from kernbench.messages.requests import PeCoord
from kernbench.messages.steps import ReduceName
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.transfers import HostSource, LaterArray
from kernbench.tp.block import MlpWeights
from kernbench.tp.parallel_state import initialize_model_parallel

FloatName: TypeAlias = Literal["f32", "f16", "bf16"]
Variant: TypeAlias = Literal["ref_ref", "load_ref", "load_load", "blocked"]
# A prime, so that rows never repeat: data read at a wrong offset is wrong.
_PERIOD = 1_048_573
_COLUMNS_AT_ONCE = 2048


def make_later_data(shape: tuple[int, ...], dtype: str, *, seed: int, scale: float = 1.0) -> LaterArray:
    """Make normally distributed numbers with a long period. They are computed when a value is first read."""

    def make() -> Array:
        count = min(_PERIOD, prod(shape))
        block = np.random.Generator(np.random.PCG64(seed)).standard_normal(count, np.float32) * np.float32(scale)
        return np.resize(block.astype(dtype_of(dtype).numpy), shape)

    return LaterArray(shape, make)


def make_normal_data(
    torch: RuntimeContext[Any], shape: tuple[int, ...], dtype: str, *, seed: int, scale: float = 1.0
) -> Array:
    """Make such numbers now, for programs that split them. In a run without data, return zeros without memory."""
    if not torch.has_data:
        return np.broadcast_to(np.zeros((), dtype_of(dtype).numpy), shape)
    return np.asarray(make_later_data(shape, dtype, seed=seed, scale=scale))


def multiply_f32(left: HostSource, right: HostSource) -> Array:
    """Compute ``left @ right`` in f32, some columns at a time, so that large weights are never stored in f32."""
    wide, b = np.asarray(left, np.float32), np.asarray(right)
    columns = range(0, b.shape[1], _COLUMNS_AT_ONCE)
    return np.concatenate([wide @ b[:, at : at + _COLUMNS_AT_ONCE].astype(np.float32) for at in columns], axis=1)


def product_atol(dtype: str) -> float:
    """Return the absolute tolerance for sums of products of about 1: a unit in the last place, and f32 noise."""
    unit = ml_dtypes.finfo(dtype_of(dtype).numpy).eps  # type: ignore[no-untyped-call]
    return max(float(unit), 1e-4)


# For values of about 1, also as absolute tolerance: a sum that cancels has the error of its summands.
TOLERANCE: dict[FloatName, float] = {"f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}


def compute_gelu(x: Array) -> Array:
    """Compute the tanh form of GELU."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def compute_attention(queries: HostSource, keys: HostSource, values: HostSource, *, causal: bool) -> Array:
    """Compute attention in f32, head by head. The last query sees all keys."""
    q, k, v = map(np.asarray, (queries, keys, values))
    wide_q, wide_k, wide_v = (x.astype(np.float32) for x in (q, k, v))
    scores = wide_q @ wide_k.swapaxes(1, 2) / np.sqrt(np.float32(q.shape[2]))
    if causal:
        lq, lk = scores.shape[1:]
        scores = np.where(np.arange(lk)[None, :] <= np.arange(lq)[:, None] + lk - lq, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.asarray((weights @ wide_v) / weights.sum(axis=2, keepdims=True)).astype(q.dtype)


def make_mlp_weights(torch: RuntimeContext[Any], hidden: int, ffn: int, dtype: str, *, seed: int) -> MlpWeights:
    """Make weights that keep activations at about 1."""
    return MlpWeights(
        w_up=make_normal_data(torch, (hidden, ffn), dtype, seed=seed, scale=hidden**-0.5),
        b_up=make_normal_data(torch, (ffn,), dtype, seed=seed + 1),
        w_down=make_normal_data(torch, (ffn, hidden), dtype, seed=seed + 2, scale=ffn**-0.5),
        b_down=make_normal_data(torch, (hidden,), dtype, seed=seed + 3),
    )


def compute_mlp(x: Array, weights: MlpWeights) -> Array:
    """Compute the MLP on one device, in f64."""
    w_up, b_up, w_down, b_down = (
        weight.astype(np.float64) for weight in (weights.w_up, weights.b_up, weights.w_down, weights.b_down)
    )
    return np.asarray(compute_gelu(x.astype(np.float64) @ w_up + b_up) @ w_down + b_down)


def run_on_every_rank(torch: RuntimeContext[Any], program: Callable[[], Tensor]) -> list[Tensor]:
    """Run ``program`` on one rank per SIP, all in one tensor-parallel group. Return the result of each rank."""
    results: dict[int, Tensor] = {}
    ranks = torch.topology.num_sips

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        initialize_model_parallel(ranks, torch=torch)
        results[rank] = program()
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=ranks)
    return [results[rank] for rank in range(ranks)]


def check_ranks(
    torch: RuntimeContext[Any], results: list[Tensor], expected: Callable[[], Array], dtype: FloatName
) -> None:
    """Check that the first result is close to ``expected``, and that all results are bitwise equal."""
    first, *remaining = results
    torch.testing.assert_close(first, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], name="rank 0")
    for rank, other in enumerate(remaining, 1):
        torch.testing.assert_close(other, first, rtol=0, atol=0, name=f"rank {rank} beside rank 0")


def over_cubes(cubes: int) -> DPPolicy:
    """Return the policy for weights by columns over all PEs of the first cubes."""
    return DPPolicy("column_wise", "column_wise", num_cubes=cubes)


def project(
    torch: RuntimeContext[Any], m: int, k: int, n: int, dtype: FloatName, *, inputs: DPPolicy, weights: DPPolicy
) -> None:
    """Project X (m, k), placed by ``inputs``, to Q, K and V (m, n). These and the weights are placed by ``weights``."""
    x_host = make_later_data((m, k), dtype, seed=1)
    w_host = {which: make_later_data((k, n), dtype, seed=seed, scale=k**-0.5) for seed, which in enumerate("QKV", 2)}
    x = torch.empty(m, k, dtype=dtype, dp=inputs, name="X").copy_(x_host)
    placed = [torch.empty(k, n, dtype=dtype, dp=weights, name=f"W_{which}").copy_(w_host[which]) for which in "QKV"]
    results = [torch.empty(m, n, dtype=dtype, dp=weights, name=which) for which in "QKV"]
    torch.launch("qkv", qkv_composite, x, *placed, *results, m, k, n, dtype, out_dtype=dtype)
    for which, result in zip("QKV", results, strict=True):
        torch.testing.assert_close(result, partial(multiply_f32, x_host, w_host[which]), atol=product_atol(dtype))


@value
class Contribution:
    """A tensor in which every row is a contribution, and the value of all its elements after the reduction."""

    tensor: Tensor
    expected: float

    def all_of_it(self) -> Array:
        """Return the expected tensor after the reduction."""
        return np.full(self.tensor.shape, self.expected, np.float32)


def reduce_values(op: ReduceName, values: Sequence[float]) -> float:
    """Reduce one value per contribution."""
    match op:
        case "sum":
            return sum(values)
        case "avg":
            return sum(values) / len(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "product":
            return prod(values)
        case "band" | "bor" | "bxor":
            raise InputError(f"reduction {op!r}: the contributions are floats; only integers have bits to combine")


def spread_rows(pes: Collection[PeCoord]) -> tuple[int, DPPolicy]:
    """Return the number of rows that gives each of these PEs of a SIP one row, and the policy for it."""
    cubes, in_cube = {pe[1] for pe in pes}, {pe[2] for pe in pes}
    policy = DPPolicy(
        cube="row_wise" if len(cubes) > 1 else "replicate",
        pe="row_wise" if len(in_cube) > 1 else "replicate",
        num_cubes=len(cubes),
        num_pes=len(in_cube),
    )
    return len(cubes) * len(in_cube), policy


def compare_contributions(
    torch: RuntimeContext[Any], name: str, world_size: int, contributions: Iterable[Contribution]
) -> str:
    """Compare. Return ``NAME (ws=N): K OK`` with K correct rows, or a line about the first wrong tensor."""
    head, right = f"{name} (ws={world_size})", 0
    failed: list[Contribution] = []
    for contribution in contributions:
        verdict = torch.testing.assert_close(contribution.tensor, contribution.all_of_it)
        if verdict is not None and not verdict.passed:
            failed.append(contribution)
        right += contribution.tensor.shape[0]
    if not torch.testing.verify:
        return f"{head}: timing only"
    if failed:
        mean = failed[0].tensor.peek().astype(np.float64).mean()
        return f"[FAIL] {head}: got mean={mean:g}, expected={failed[0].expected:g}"
    return f"{head}: {right} OK"
