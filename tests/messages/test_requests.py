"""Requests that mean nothing are refused where they are made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernbench.common.errors import InputError
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, KernelRef, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg

PE = (0, 0, 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MemoryReadMsg(pa=0, nbytes=0), "MemoryReadMsg: nbytes=0, must be at least 1"),
        (lambda: MemoryWriteMsg(pa=0, nbytes=-4), "MemoryWriteMsg: nbytes=-4"),
        (lambda: MemoryWriteMsg(pa=0, nbytes=4, pattern=b""), "a pattern has at least 1 byte"),
        (lambda: MemoryWriteMsg(pa=0, nbytes=4, data=np.zeros(3, np.uint8)), "data has 3 bytes, nbytes=4"),
        (lambda: PeDmaMsg(pe=PE, pa=0, nbytes=0), "PeDmaMsg: nbytes=0"),
        (lambda: PeDmaMsg(pe=PE, pa=0, nbytes=4, repeat=0), "repeat=0"),
        (lambda: PeDmaMsg(pe=PE, pa=0, nbytes=4, outstanding=0), "outstanding=0"),
        (lambda: PeDmaMsg(pe=PE, pa=0, nbytes=4, op="swap"), "op='swap', must be read or write"),  # type: ignore[arg-type]
        (
            lambda: KernelLaunchMsg(
                kernel=KernelRef(name="k", function=print), args=(), targets=(PE,), kwargs=(("tl", 1),)
            ),
            "launch 'k': the machine gives a kernel its tl",
        ),
    ],
)
def test_a_request_of_nothing(make: Callable[[], HostMsg], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
