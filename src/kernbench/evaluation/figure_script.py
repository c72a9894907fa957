"""The command line of a script that regenerates figures."""

from __future__ import annotations

import argparse
import sys
from typing import Protocol

from kernbench.common.errors import KernbenchError


class Draw(Protocol):
    """Writes results, unless those that are there shall be drawn, and the figures."""

    def __call__(self, *, render_only: bool) -> None: ...


def run_script(description: str | None, draw: Draw) -> int:
    """Parse the arguments (``--render-only``) and ``draw``; the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render-only", action="store_true")
    try:
        draw(render_only=parser.parse_args().render_only)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
