"""Options of a run: each is declared once, and commands and the library have it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
import rich_click as click
from click.testing import CliRunner

import kernbench as kb
from kernbench.cli.commands import EXAMPLES, cli
from kernbench.cli.options import ProgramCommand, options_of
from kernbench.common.values import value
from kernbench.runtime_api.run_request import OutputOptions, RunRequest, group, list_options, option

GROUPS = ("Program", "Machine", "Data", "Reuse", "Limits", "Outputs", "Explanation")
NO_CHOICES = {"keywords", "on_progress", "overrides"}
"""Keywords of the library beside the request; ``overrides`` belong to the machine"""


@value(kw_only=True)
class MoreOutputs(OutputOptions):
    """Outputs with a further file, and a limit of its own."""

    heat: str | None = option("Write the heat of each part.", metavar="FILE.csv", keyword="heat")
    most_parts: int | None = option("Write at most N parts.", metavar="N", scope="evaluation")


@value(kw_only=True)
class MoreRequest(RunRequest):
    """A request with further outputs."""

    outputs: MoreOutputs = group(MoreOutputs, "Outputs", commands=("run",), scope="simulation")


def run_command(*arguments: str) -> tuple[str, list[RunRequest]]:
    """Run a command that has the further options; return its output and its request."""
    requests: list[RunRequest] = []

    @click.command(cls=ProgramCommand)
    @options_of("run", MoreRequest)
    def command(request: RunRequest) -> int:
        requests.append(request)
        return 0

    return CliRunner().invoke(command, arguments).output, requests


def test_a_further_field_is_an_option_and_a_keyword() -> None:
    help_text, _ = run_command("--help")
    outputs = help_text.partition("─ Outputs ─")[2].partition("╭")[0]
    assert "Write the heat of each part." in outputs
    assert "--most-parts" in outputs
    _, (request,) = run_command("--heat", "e.csv", "--bench", "hello-send", "--", "a")
    assert isinstance(request.outputs, MoreOutputs)
    assert (request.outputs.heat, request.program.bench, request.program.args) == ("e.csv", "hello-send", ("a",))
    assert request.list_flags("simulation") == ["--heat"]
    assert MoreRequest.of(most_parts=3).list_flags("evaluation") == ["--most-parts"]
    assert {"heat"} == _keywords(MoreRequest) - _keywords(RunRequest)


def _keywords(kind: type[RunRequest]) -> set[str | None]:
    return {entry.keyword for entry in list_options(kind)} - {None}


def test_the_library_has_the_keywords_of_the_fields() -> None:
    keywords = inspect.signature(kb.run).parameters
    assert set(keywords) - NO_CHOICES == _keywords(RunRequest)
    defaults = {entry.keyword: entry.default for entry in list_options(RunRequest)}
    # The library takes mappings of parameters and settings, and makes texts of them.
    changed = {name for name in defaults.keys() & keywords.keys() if keywords[name].default != defaults[name]}
    assert changed <= {"params", "settings"}


def test_names_of_choices_are_unique() -> None:
    names = [entry.name for entry in list_options(RunRequest)]
    assert len(set(names)) == len(names)
    with pytest.raises(TypeError, match="a run has no choice colour"):
        RunRequest.of(colour="red")


@pytest.mark.parametrize("name", ["run", "web", "sweep"])
def test_commands_have_their_options_in_groups(name: str) -> None:
    _, command, _ = cli.resolve_command(click.Context(cli), [name])
    assert isinstance(command, click.RichCommand)
    spellings = {spelling for parameter in command.params for spelling in parameter.opts}
    for entry in list_options(RunRequest):
        assert (entry.spelling in spellings) == (name in entry.commands and bool(entry.help)) or entry.name == "out"
    titles = [panel.name for panel in command.panels]
    assert [title for title in GROUPS if title in titles] == [title for title in titles if title in GROUPS]
    assert {"Program", "Machine", "Data", "Outputs"} <= set(titles)
    assert name in EXAMPLES


@pytest.mark.parametrize("width", [80, 120])
def test_the_help_of_run_fits(width: int, kernbench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = kernbench("run", "--help").out.splitlines()
    heads = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert heads == [*GROUPS, "Options"]
    assert max(map(len, lines)) <= width


def test_a_request_holds_plain_values() -> None:
    request = RunRequest.of(bench="hello-send", points=3, as_cuda=True, settings=("torch.cubes=2",), overrides=["a=1"])
    assert request.override_texts == ("a=1", "torch.cubes=2", "torch.as_cuda=true", "triton.points=3")
    assert {part.name for part in fields(request)} == {
        *("program", "machine", "data", "reuse", "limits", "outputs", "observation")
    }
