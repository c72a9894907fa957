"""What the critical path calls the time of a kernel on the skewed machine, part by part."""

from __future__ import annotations

import numpy as np
import pytest

from engine_support import place
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import PathPart
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import log_of, logged
from skewed import skewed


def test_a_load_a_sum_and_a_store() -> None:
    """Each waits for the one before, so all of it is on the path; the other two issues are under the load."""
    engine = logged(skewed())
    x = place(engine, np.zeros(400, np.float32))

    def kernel(p: int, *, tl: Tl) -> None:
        y = tl.load(p, (400,), "f32")
        tl.store(p, y + y)

    handle = engine.submit(
        KernelLaunchMsg(kernel=KernelRef(name="kernel", function=kernel), args=(x.arg,), targets=((0, 0, 0),))
    )
    engine.wait(handle)
    found = {each.part: each.ps / 1000 for each in PathFinder(log_of(engine).seen, [handle]).of_request(handle).parts}
    assert found[PathPart.LAUNCH] == pytest.approx(6.7, abs=0.001)
    assert found[PathPart.ISSUE] == pytest.approx(1.1, abs=0.001)
    assert found[PathPart.DMA_SETUP] == pytest.approx(2 * (2.7 + 0.8), abs=0.001)
    assert found[PathPart.MATH] == pytest.approx(3.1 + 1600 / 193, abs=0.001)
    assert sum(found.values()) == pytest.approx((handle.ended_ps - handle.submitted_ps) / 1000)
