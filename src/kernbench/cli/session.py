"""The state of one call of the command line, and the ways it can end."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field

from kernbench.cli.streams import CommandOutput
from kernbench.common.values import state

INVALID, FAILED, INTERRUPTED, UNREAD = 2, 1, 130, 141
"""Exit codes: bad input, a run that failed, Ctrl-C, an output that nobody reads."""


@state
class Session:
    """``debug``: a traceback is wanted; ``verbose``: reports in full; ``as_json``: stdout is for one document.

    ``at_end``: what is undone behind the command, unless the process ends with it.
    """

    debug: bool = False
    verbose: bool = False
    as_json: bool = False
    output: CommandOutput = field(default_factory=CommandOutput)
    at_end: ExitStack = field(default_factory=ExitStack)
