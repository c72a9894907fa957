"""What holds for the whole suite."""

from __future__ import annotations

import gc

from hypothesis import settings

# A loaded machine is slow, not wrong. `--hypothesis-profile=thorough` tries twenty times as many examples.
settings.register_profile("suite", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """The tests themselves live to the end: the collector need not look through them again and again."""
    gc.freeze()
