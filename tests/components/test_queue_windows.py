"""A send with a window, as old kernels have it: it goes as any other, and a warning says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.ccl.testing import run_kernel_in_mock


def test_a_window_has_no_effect_and_a_warning_says_so() -> None:
    def kernel(ptr: int, n: int, *, tl: Any) -> None:
        mine = tl.load(ptr + tl.program_id(0) * 4 * n, n, "f32")
        for _ in range(2):
            tl.send("E", mine, window=1)
        total = tl.recv("W", n, "f32") + mine
        tl.store(ptr + tl.program_id(0) * 4 * n, total + tl.recv("W", n, "f32"))

    with pytest.warns(FutureWarning, match=r"test_queue_windows.py:\d+: tl.send\(window=…\) has no effect"):
        outputs = run_kernel_in_mock(kernel, 2, "ring_1d", [np.ones(4, np.float32)] * 2, (4,))
    assert [x.tolist() for x in outputs] == [[3.0] * 4] * 2
