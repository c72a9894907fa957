"""Generate the pages of the reference that list commands and keys: ``make docs`` adds them to the site.

The command line comes from the commands themselves. The configuration comes from the fields of the machine's file, as
``kernbench config`` prints them; its column of values is that of the packaged machine ``default``.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kernbench.cli.commands import cli
from kernbench.common.config_keys import ConfigKey, describe_key
from kernbench.topology.builder import read_spec
from kernbench.topology.spec import TopologySpec

PAGES = ("reference/command-line.md", "reference/configuration.md")
"""The pages that are generated here, by their place in the site"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    for page, lines in zip(PAGES, (write_commands(), write_keys()), strict=True):
        files.append(File.generated(config, page, content="\n".join(lines) + "\n"))
    return files


def write_commands() -> Iterator[str]:
    """Yield the page of commands: help, options and examples of each."""
    yield "# Commands and options\n"
    yield "For users of the command line. This page lists every command with all its options, as `--help` does;"
    yield "[Command line](../cli.md) explains them.\n"
    context = click.Context(cli, info_name="kernbench")
    for name in cli.list_commands(context):
        _, command, _ = cli.resolve_command(context, [name])
        assert command is not None, name
        yield f"## kernbench {name}\n"
        yield f"{command.help or ''}\n"
        yield "| option | meaning |\n| --- | --- |"
        inner = click.Context(command, parent=context, info_name=name)
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield f"| {_spelling(parameter, inner)} | {_cell(parameter.help or '')} |"
        *_, examples = (command.epilog or "").partition("Examples:")
        yield "\n```text\n" + "\n".join(filter(None, map(str.strip, examples.splitlines()))) + "\n```\n"


def _spelling(option: click.Option, context: click.Context) -> str:
    spellings = " ".join(f"`{spelling}`" for spelling in (*option.opts, *option.secondary_opts))
    return spellings if option.is_flag else f"{spellings} {_cell(option.make_metavar(context))}"


def write_keys() -> Iterator[str]:
    """Yield the page of keys: a section for each key of the file's first level, a row for each key below it."""
    yield "# Keys of the machine\n"
    yield "For architects. This page lists every key that a machine's file and `--set` accept;"
    yield "[Configuration of machines](../topology.md) explains them.\n"
    spec = read_spec("default", ())
    for section in describe_key(TopologySpec, "", spec).entries:
        yield f"## {section.path}\n\n{section.meaning}\n"
        yield "| key | type | default | in `default` | meaning |\n| --- | --- | --- | --- | --- |"
        for key in list_keys(section.path, spec):
            allowed = key.allowed or key.type
            unit = f", {key.unit}" if key.unit and key.unit not in allowed else ""
            cells = (f"{allowed}{unit}", key.default_text, key.content_text, key.meaning)
            yield f"| `{key.path}` | {' | '.join(_cell(text) for text in cells)} |"
        yield ""


def list_keys(path: str, spec: TopologySpec) -> Iterator[ConfigKey]:
    """Yield a key and all keys below it, a key before its own keys."""
    key = describe_key(TopologySpec, path, spec)
    yield key
    for entry in key.entries:
        yield from list_keys(entry.path, spec)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
