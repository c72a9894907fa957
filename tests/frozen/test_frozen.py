"""What is simulated has not changed; see ``freeze.py`` for what is kept, and when it may be written anew."""

from __future__ import annotations

import pytest
from freeze import (
    CASES,
    Case,
    figures_of,
    numerics,
    stored,
)

STORED = stored()
SAME_NUMERICS = STORED.numerics == numerics()


def test_every_case_is_frozen() -> None:
    assert list(STORED.cases) == list(CASES)


def test_memory_is_compared() -> None:
    if not SAME_NUMERICS:
        pytest.skip("NumPy rounds in another way here than where memory was frozen: only that of exact cases is")


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[pytest.mark.slow] * each.slow, id=each.name) for each in CASES.values()]
)
def test_simulation(case: Case) -> None:
    expected, found = STORED.cases[case.name], figures_of(case.play())
    compared = [key for key in {**expected, **found} if SAME_NUMERICS or case.exact or not key.startswith("memory")]
    differing = {key: (expected.get(key), found.get(key)) for key in compared if expected.get(key) != found.get(key)}
    report = "\n".join(f"{key}\n  frozen {was}\n  now    {now}" for key, (was, now) in differing.items())
    assert not differing, (
        f"{case.name} is simulated differently: {', '.join(differing)}\n{report}\n"
        f"to see where: python tests/frozen/freeze.py dump '{case.name}' in both checkouts"
    )
