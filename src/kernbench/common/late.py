"""Imports that are put off until they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def late(module: str, name: str) -> Any:
    """Return what a module calls ``name``; this imports the module.

    Use it for what takes long to import and few runs need: a command, pictures, Parquet. The caller states the type.
    """
    return vars(importlib.import_module(module))[name]
