"""One PE greets another: the smallest program with a queue."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from kernbench.common.config import ConfigModel
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext


class HelloSendParams(ConfigModel):
    """The greeting."""

    text: str = Field(default="hello from PE 0", min_length=1)
    """What PE 0 says; it has to fit a slot of the queue, 4 KiB unless ccl.yaml says otherwise."""


def greet(letters_ptr: int, n: int, *, tl: Any) -> None:
    """Send the letter of PE 0, which is the first, to its neighbour; on PE 1 keep what comes as the second."""
    if tl.program_id(0) == 0:
        tl.send("E", tl.load(letters_ptr, n, "i8"))
    else:
        tl.store(letters_ptr + n, tl.recv("W", n, "i8"))


@bench("hello-send", "one PE greets another: the smallest program with a queue", params=HelloSendParams)
def run(torch: RuntimeContext[HelloSendParams]) -> str:
    """Send a greeting from PE 0 to PE 1, and compare the two in the end."""
    greeting = np.frombuffer(torch.params.text.encode(), np.int8)
    n = len(greeting)

    # Queues in a ring of two: what a PE sends E comes to the other from W.
    plan = torch.install_ipcq("ring_allreduce_tcm", world_size_override=2)

    # A row for each of the first two PEs of cube 0; the kernel runs on the PEs that own a row.
    letters = torch.zeros(2, n, dtype=torch.int8, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2), name="letters")
    letters[0] = greeting
    torch.launch("greet", greet, letters, n)

    torch.testing.assert_close(letters, [greeting, greeting])
    torch.uninstall_ipcq(plan)
    if not torch.testing.verify:
        return f"PE 0 has sent {n} bytes to PE 1"
    return f"PE 1 got: {letters.peek()[1].tobytes().decode(errors='replace')}"
