"""State of one call of the command line, and its exit codes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field

from kernbench.cli.streams import CommandOutput
from kernbench.common.values import state

INVALID, FAILED, INTERRUPTED, UNREAD = 2, 1, 130, 141
"""Exit codes: bad input, a failed run, Ctrl-C, a reader that closed stdout"""


@state
class Session:
    """The state of one call.

    ``debug``: print tracebacks. ``verbose``: print complete reports. ``as_json``: reserve stdout for one document.
    ``at_end``: cleanup after the command, skipped if the process ends with it.
    """

    debug: bool = False
    verbose: bool = False
    as_json: bool = False
    output: CommandOutput = field(default_factory=CommandOutput)
    at_end: ExitStack = field(default_factory=ExitStack)
