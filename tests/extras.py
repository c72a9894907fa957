"""Tests of extras skip where one is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(extra: str) -> None:
    """Skip the module that calls this unless the package of ``extra`` is there; it is not imported."""
    if find_spec(extra) is None:
        pytest.skip(f"kernbench[{extra}] is not installed", allow_module_level=True)
