"""The command line of a script that regenerates figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from kernbench.common.errors import KernbenchError


def run_script(description: str | None, draw: Callable[[bool], None]) -> int:
    """Parse the arguments and ``draw``; the exit code. ``draw(render_only)`` writes results, unless those that are
    there shall be drawn, and the figures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render-only", action="store_true")
    try:
        draw(parser.parse_args().render_only)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
