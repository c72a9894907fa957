"""A message from one PE to another: the smallest program with a queue."""

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
    """Text of the message; it must fit a slot of the queue, 4 KiB unless ccl.yaml sets another size."""


def greet(letters_ptr: int, n: int, *, tl: Any) -> None:
    """Send the first letter from PE 0 to its neighbour. Store the received message as the second letter on PE 1."""
    if tl.program_id(0) == 0:
        tl.send("E", tl.load(letters_ptr, n, "i8"))
    else:
        tl.store(letters_ptr + n, tl.recv("W", n, "i8"))


@bench("hello-send", "one PE greets another: the smallest program with a queue", params=HelloSendParams)
def run(torch: RuntimeContext[HelloSendParams]) -> str:
    """Send a greeting from PE 0 to PE 1, and compare both at the end."""
    greeting = np.frombuffer(torch.params.text.encode(), np.int8)
    n = len(greeting)

    # Queues in a ring of two: a message sent E by one PE arrives at the other PE from W.
    plan = torch.install_ipcq("ring_allreduce_tcm", world_size_override=2)

    # One row for each of the first two PEs of cube 0. The kernel runs on the PEs that own a row.
    letters = torch.zeros(2, n, dtype=torch.int8, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2), name="letters")
    letters[0] = greeting
    torch.launch("greet", greet, letters, n)

    torch.testing.assert_close(letters, [greeting, greeting])
    torch.uninstall_ipcq(plan)
    if not torch.testing.verify:
        return f"PE 0 has sent {n} bytes to PE 1"
    return f"PE 1 got: {letters.peek()[1].tobytes().decode(errors='replace')}"
