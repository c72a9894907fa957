"""Functions that dynamo traces in place of functions of this package, which it does not trace."""

from __future__ import annotations

from torch.nn import Module


def enter_module(module: Module, args: object) -> None:
    """Do nothing: nodes of a trace have their modules."""


def leave_module(module: Module, args: object, output: object) -> None:
    """Do nothing: nodes of a trace have their modules."""
