"""The key of a compiled graph in Inductor's cache, which other processes share.

Generated code names the calls of the program that it carries out, and depends on this package and on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from kernbench.frontends.torch.inductor.codegen import origin_of
from kernbench.runtime_api.context import AnyContext, current_context


@cache
def _digest_of_sources() -> str:
    """Return the version of this package, and a digest of the sources that decide what is generated."""
    digest = hashlib.sha256(version("kernbench").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _describe(graph: GraphModule, context: AnyContext) -> tuple[str, ...]:
    """Return what the code for a graph depends on besides its operators."""
    settings = context.frontends.torch
    places = hashlib.sha256("\n".join(str(origin_of([node])) for node in graph.graph.nodes).encode())
    machine = (context.engine.topology.digest, str(settings.cubes), str(settings.pes), str(context.has_data))
    return (_digest_of_sources(), *machine, places.hexdigest())


def extend_key(init: Callable[..., None]) -> Callable[..., None]:
    """Return the method that collects the parts of a graph's key, changed to collect these, too."""

    @wraps(init)
    def init_here(self: Any, gm: GraphModule, *args: Any, **options: Any) -> None:
        init(self, gm, *args, **options)
        context = current_context()
        self.kernbench = () if context is None else _describe(gm, context)

    return init_here
