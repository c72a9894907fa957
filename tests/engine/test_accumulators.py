"""What a dot sums in, on the machine: the matrix unit's type, and that of the ``acc`` it is given."""

from __future__ import annotations

import numpy as np
import pytest

from engine_support import fetch, launch, place
from kernbench.engine.engine import GraphEngine
from kernbench.triton_emu.tl_context import TLContext as Tl
from skewed import skewed


def dotted(unit: str, operands: str, acc: str, k: int = 1) -> float:
    """2048 and a one for each of ``k``, by one dot that adds to ``acc``."""
    engine = GraphEngine(skewed(f"pe.gemm.dtype_acc={unit}"))
    result = place(engine, np.zeros((1, 1), np.float32))

    def kernel(out: int, *, tl: Tl) -> None:
        a, b = tl.full((1, k), 1.0, operands), tl.full((k, 1), 1.0, operands)
        tl.store(out, tl.cast(tl.dot(a, b, acc=tl.full((1, 1), 2048.0, acc)), "f32"))

    launch(engine, kernel, result)
    return float(fetch(engine, result)[0, 0])


@pytest.mark.parametrize(
    ("unit", "operands", "acc", "wanted"),
    [
        ("f32", "f32", "f32", 2049),
        ("f32", "f16", "f32", 2049),
        ("f32", "f16", "f16", 2048),  # the result has the type of acc: rounded to even
        ("f16", "f32", "f32", 2048),
        ("f16", "f16", "f16", 2048),
        ("bf16", "f32", "f32", 2048),
    ],
)
def test_one_more_than_an_f16_can_say(unit: str, operands: str, acc: str, wanted: float) -> None:
    assert dotted(unit, operands, acc) == wanted


def test_what_fits_is_not_rounded() -> None:
    assert dotted("f16", "f16", "f16", k=2) == 2050
