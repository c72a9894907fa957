"""``kernbench``: the group of all commands. A command's module is loaded when the command is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rich_click as click

from kernbench.common import __version__
from kernbench.common.errors import there_are
from kernbench.common.late import late


class LazyGroup(click.RichGroup):
    """``commands_at`` gives for each command its module, which has it as ``command``, and its line in the help.

    Listing commands needs their lines only, so it imports none of them.
    """

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order given."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A stand-in with the name and the line of help; None for a name that is no command."""
        found = self._commands_at.get(cmd_name)
        return None if found is None else click.RichCommand(name=cmd_name, help=found[1])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command to run: here its module is imported. UsageError, with the nearest name, for none."""
        if args[0] not in self._commands_at and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}; {there_are(args[0], tuple(self._commands_at))}", ctx)
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in if name is None else self._load(name), rest

    def _load(self, name: str) -> click.Command:
        module = self._commands_at[name][0]
        command = late(module, "command")
        assert isinstance(command, click.Command), f"{module}.command is the command {name}"
        return command


@click.group(
    name="kernbench",
    cls=LazyGroup,
    commands_at={
        "run": ("kernbench.cli.run_command", "Run a bench and say what it took."),
        "list": ("kernbench.cli.list_command", "Benches, machines, parts and probe cases; the parameters of a bench."),
        "config": ("kernbench.cli.config_command", "What a key of the machine's file means, and what is allowed."),
        "probe": ("kernbench.cli.probe_command", "Predefined traffic: latency, its parts, bandwidth."),
        "check-part": ("kernbench.cli.check_part_command", "What a part of yours owes the machine, a line a check."),
        "topology": ("kernbench.cli.topology_command", "The machine: counts, links, a drawing to scale."),
        "web": ("kernbench.cli.web_command", "The machine and a run as a page for the browser."),
        "sweep": ("kernbench.cli.sweep_command", "A grid of machine and bench parameters, in parallel."),
        "compare": ("kernbench.cli.compare_command", "Two results side by side, and what explains the difference."),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kernbench")
def cli() -> None:
    """Numerics and contended timing of torch-like programs on a multi-die AI accelerator."""
