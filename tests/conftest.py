"""What holds for the whole suite."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

from kernbench.common.collector import PATIENT
from kernbench.observe.guard import STRICT

# As the command line has it. Before NumPy comes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A loaded machine is slow, not wrong. `--hypothesis-profile=thorough` tries forty times as many examples.
settings.register_profile("suite", deadline=None, max_examples=5)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile("suite")

# Nothing that is made until all tests are found goes away again.
gc.disable()


def pytest_collection_finish() -> None:
    """The tests themselves live to the end: the collector need not look through them again and again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*PATIENT)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let faults of what explains a run pass the guard that a user's run has, or it would hide them."""
    monkeypatch.setenv(STRICT, "1")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor through what a file of tests leaves behind it, which is kept for the next ones."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
