"""What the all-reduce benches have in common: data whose sum is known, and a line that says whether it came out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from kernbench.common.values import value
from kernbench.messages.requests import PeCoord
from kernbench.messages.steps import ReduceName
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor


@value
class Contribution:
    """A tensor of which every row is a contribution of ``value``, and what all of it becomes."""

    tensor: Tensor
    expected: float

    def all_of_it(self) -> Array:
        """What the tensor is to become."""
        return np.full(self.tensor.shape, self.expected, np.float32)


def expected_reduction(op: ReduceName, values: Sequence[float]) -> float:
    """What the elements of contributions, one value each, become."""
    match op:
        case "sum":
            return sum(values)
        case "avg":
            return sum(values) / len(values)
        case "max":
            return max(values)
        case "min":
            return min(values)


def rows_on(pes: Collection[PeCoord]) -> tuple[int, DPPolicy]:
    """How many rows give each of these PEs of a SIP one, and the policy that does."""
    cubes, in_cube = {pe[1] for pe in pes}, {pe[2] for pe in pes}
    policy = DPPolicy(
        cube="row_wise" if len(cubes) > 1 else "replicate",
        pe="row_wise" if len(in_cube) > 1 else "replicate",
        num_cubes=len(cubes),
        num_pes=len(in_cube),
    )
    return len(cubes) * len(in_cube), policy


def verdict(torch: RuntimeContext[Any], name: str, world_size: int, made: Iterable[Contribution]) -> str:
    """Compare; ``NAME (ws=N): K OK``, K the rows that are right, or what is wrong with the first tensor that is not."""
    head, right = f"{name} (ws={world_size})", 0
    failed: list[Contribution] = []
    for each in made:
        found = torch.testing.assert_close(each.tensor, each.all_of_it)
        if found is not None and not found.passed:
            failed.append(each)
        right += each.tensor.shape[0]
    if not torch.testing.verify:
        return f"{head}: timing only"
    if failed:
        mean = failed[0].tensor.peek().astype(np.float64).mean()
        return f"[FAIL] {head}: got mean={mean:g}, expected={failed[0].expected:g}"
    return f"{head}: {right} OK"
