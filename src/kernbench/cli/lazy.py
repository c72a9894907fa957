"""A group whose commands are modules that are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import rich_click as click


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
        """The command to run: here its module is imported."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in if name is None else self._load(name), rest

    def _load(self, name: str) -> click.Command:
        module = importlib.import_module(self._commands_at[name][0])
        command = vars(module)["command"]
        assert isinstance(command, click.Command), f"{module.__name__}.command is the command {name}"
        return command
