"""The examples at the end of each command's help: every command has some, they parse, and they run as written."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from kernbench.cli.commands import EXAMPLES, cli

ROOT = Path(__file__).parents[2]


def arguments_of(line: str) -> list[str]:
    """Return the arguments of an example without its redirection."""
    program, *arguments = shlex.split(line.partition(">")[0])
    assert program == "kernbench"
    return arguments


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(cli.list_commands(click.Context(cli)))
    assert all(2 <= len(lines) <= 4 for lines in EXAMPLES.values())
    for name, lines in EXAMPLES.items():
        assert any(line.split()[1] == name for line in lines)


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_ends_with_examples(name: str, kernbench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    ran = kernbench(name, "--help")
    tail = [line.strip() for line in ran.out.splitlines()]
    assert [line for line in tail[tail.index("Examples:") + 1 :] if line] == list(EXAMPLES[name])


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_examples_parse(line: str) -> None:
    """A context is the command line, parsed; nothing runs."""
    arguments = arguments_of(line)
    with click.Context(cli, info_name="kernbench") as context:
        name, command, options = cli.resolve_command(context, arguments)
        assert command is not None
        command.make_context(name, options, parent=context)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, tmp_path: Path) -> None:
    """In a folder with ``examples/``, one after the other, as a shell would run them."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for line in EXAMPLES[name]:
        if "--port" in line:  # it serves until Ctrl-C
            continue
        program = "from kernbench.cli.main import entry; entry()"
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments_of(line)],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        _, redirected, file = line.partition("> ")
        if redirected:
            (tmp_path / file).write_text(done.stdout, encoding="utf-8")
