"""Shell completion: names of benches, probe cases and machines, and paths and values of ``--set``.

The shell runs ``kernbench`` for each word. So each completer imports the lists that it needs, and only these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import rich_click as click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class

from kernbench.common.errors import KernbenchError
from kernbench.common.late import late

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
BENCHES = "kernbench.runtime_api.bench_registry"
KEYS = "kernbench.common.config_keys"


@add_completion_class
class FishCompletion(FishComplete):
    """Completion for fish that allows commas in words and in descriptions."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


def _completes(words: Callable[[click.Context, str], Iterable[str]]) -> Completer:
    """Make a completer from a function that lists words. It completes file names if no word matches."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            matches = [CompletionItem(word) for word in words(ctx, incomplete) if word.startswith(incomplete)]
        except KernbenchError:  # the machine or a file is invalid: the command itself reports the error
            return []
        return matches or [CompletionItem(incomplete, type="file")]

    return complete


@_completes
def complete_bench(_: click.Context, __: str) -> list[str]:
    """List the registered benches."""
    return [bench.name for bench in late(BENCHES, "known_benches")()]


@_completes
def complete_case(_: click.Context, __: str) -> list[str]:
    """List the probe cases."""
    cases = late("kernbench.probe.cases", "CASES")
    return [*(case.name for case in cases), late("kernbench.probe.memory_case", "NAME")]


@_completes
def complete_machine(_: click.Context, __: str) -> list[str]:
    """List the packaged machines."""
    return list(late("kernbench.topology.builder", "packaged_machines")())


@_completes
def complete_key(ctx: click.Context, _: str) -> list[str]:
    """List the paths of the machine's keys."""
    return late(KEYS, "list_paths")(*_machine(ctx))  # type: ignore[no-any-return]


@_completes
def complete_override(ctx: click.Context, incomplete: str) -> list[str]:
    """List the matching paths. For a single match, list ``path=value`` for each allowed value or the current value."""
    key = incomplete.partition("=")[0]
    places = [("", *_machine(ctx)), *_bench_place(ctx)]
    paths = [
        (prefix + path, path, model, content)
        for prefix, model, content in places
        for path in late(KEYS, "list_paths")(model, content)
        if (prefix + path).startswith(key)
    ]
    left = [path for path in paths if path[0] == key] or paths
    if len(left) != 1:
        return [path[0] for path in left]
    name, path, model, content = left[0]
    description = late(KEYS, "describe_key")(model, path, content)
    is_switch = isinstance(description.content, bool)
    values = description.choices or (("true", "false") if is_switch else (description.content_text,))
    return [f"{name}={content}" for content in values]


def _machine(ctx: click.Context) -> tuple[Any, Any]:
    """Return the model class and the configuration of the machine on the command line."""
    spec = late("kernbench.topology.builder", "read_spec")(ctx.params.get("topology"))
    return type(spec), spec


def _bench_place(ctx: click.Context) -> Iterator[tuple[str, Any, Any]]:
    """Yield prefix, model and values of the parameters of the bench on the command line."""
    name = next((ctx.params[option] for option in ("bench", "name") if ctx.params.get(option)), None)
    if name is not None:
        bench = late(BENCHES, "load_bench")(name)
        yield "bench.", bench.params, bench.make_params()
