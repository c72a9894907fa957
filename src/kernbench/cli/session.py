"""What one call of the command line knows, whichever command it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import rich_click as click

from kernbench.cli.streams import Output


@dataclass(slots=True)
class Session:
    """``debug``: a traceback is wanted; ``verbose``: reports in full; ``as_json``: stdout is for one document."""

    debug: bool = False
    verbose: bool = False
    as_json: bool = False
    output: Output = field(default_factory=Output)


def current_session() -> Session | None:
    """The session of the command that runs; None outside of one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Session)
