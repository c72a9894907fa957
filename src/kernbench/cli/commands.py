"""The ``kernbench`` command group. It imports the module of a command on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rich_click as click

from kernbench.common import __version__
from kernbench.common.errors import there_are
from kernbench.common.late import late


class LazyGroup(click.RichGroup):
    """A command group that imports each command on first use.

    ``commands_at`` maps the name of a command to its module and its one-line help. The module defines ``command``.
    Listing the commands needs these lines only and imports no module. ``EXAMPLES`` end the help of each command.
    """

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in their defined order."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a stand-in with the name and the one-line help, or None if no command has this name."""
        found = self._commands_at.get(cmd_name)
        return None if found is None else click.RichCommand(name=cmd_name, help=found[1])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the module of the requested command and return the command.

        Raises UsageError, with the nearest name, if no command has this name.
        """
        if args[0] not in self._commands_at and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}; {there_are(args[0], tuple(self._commands_at))}", ctx)
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in if name is None else self._load(name), rest

    def _load(self, name: str) -> click.Command:
        module = self._commands_at[name][0]
        command = late(module, "command")
        assert isinstance(command, click.Command), f"{module}.command is the command {name}"
        command.epilog = "\n\n".join(["Examples:", *EXAMPLES[name]])
        return command


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "kernbench run --bench gemm-single-pe --verify-data",
        "kernbench run --bench gemm-single-pe --set bench.m=256 --explain",
        "kernbench run --bench examples/rms_scale.py --trace trace.json",
    ),
    "list": ("kernbench list -v", "kernbench list gemm-single-pe"),
    "config": ("kernbench config cube.hbm", "kernbench config cube.hbm.refresh --topology edge"),
    "probe": (
        "kernbench probe --set cube.hbm.slices=16",
        "kernbench probe --case pe-sram --size 64KiB",
        "kernbench probe --case memory --picture memory.png",
    ),
    "check-part": (
        "kernbench check-part examples/parts/adaptive_router.py:AdaptiveRouter",
        "kernbench check-part examples/parts/banked_memory.py:BankedMemory --json",
    ),
    "topology": (
        "kernbench topology --set cube.hbm.slices=16",
        "kernbench topology --format svg --out machine.svg",
        "kernbench topology --timing hbm3",
    ),
    "web": (
        "kernbench web --out machine.html",
        "kernbench web --bench gemm-single-pe",
        "kernbench web report.html --port 8000",
    ),
    "sweep": (
        "kernbench sweep examples/sweep_hbm.yaml",
        "kernbench sweep examples/sweep_hbm.yaml --set bench.m=64 --out results/small --jobs 2",
    ),
    "compare": (
        "kernbench run --bench gemm-single-pe --json > a.json",
        "kernbench run --bench gemm-single-pe --set cube.hbm.slices=16 --json > b.json",
        "kernbench compare a.json b.json",
    ),
}
"""Command lines at the end of each command's help; ``examples/`` is the folder of the repository"""


@click.group(
    name="kernbench",
    cls=LazyGroup,
    commands_at={
        "run": ("kernbench.cli.run_command", "Run a bench or a script and report its latency and bottleneck."),
        "list": ("kernbench.cli.list_command", "List benches, machines, parts and probe cases."),
        "config": ("kernbench.cli.config_command", "Describe a key of the machine's YAML file."),
        "probe": ("kernbench.cli.probe_command", "Measure latency and bandwidth with predefined traffic."),
        "check-part": ("kernbench.cli.check_part_command", "Check a part of your own under standard traffic."),
        "topology": ("kernbench.cli.topology_command", "Show the machine: counts, links, or a drawing to scale."),
        "web": ("kernbench.cli.web_command", "Write the machine and a run as a page for the browser."),
        "sweep": ("kernbench.cli.sweep_command", "Run a grid of machine and bench parameters in parallel."),
        "compare": ("kernbench.cli.compare_command", "Compare two results and explain the difference."),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kernbench")
def cli() -> None:
    """Simulate numerics and contended timing of torch-like programs on a multi-die AI accelerator."""
