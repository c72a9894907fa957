"""``triton.autotune`` by simulated time."""

from __future__ import annotations

import warnings
from dataclasses import field
from typing import Any, TypeAlias

from triton.runtime.autotuner import Autotuner

from kernbench.common.errors import AllocationError
from kernbench.common.values import state
from kernbench.frontends.triton.launch import context_of

Config: TypeAlias = Any
_run, _prune, _bench = Autotuner.run, Autotuner.prune_configs, Autotuner._bench  # noqa: SLF001 - replaced by these
DOES_NOT_FIT = [float("inf")] * 3
"""What Triton has for the times of a configuration that cannot run."""


@state
class Chosen:
    """The configurations that a rank has chosen, by tuner: on another machine others may be faster."""

    caches: dict[int, dict[Any, Config]] = field(default_factory=dict)

    def of(self, tuner: Any) -> dict[Any, Config]:
        """Return the configurations of one tuner, by the arguments that they were chosen for."""
        return self.caches.setdefault(id(tuner), {})


def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of ``Autotuner.run``: it chooses anew in each simulation."""
    local = context_of(tuner.base_fn.__name__).rank_local
    chosen = local.get(Chosen)
    if chosen is None:
        local.put(chosen := Chosen())
    before = len(cache := chosen.of(tuner))
    tuner.cache = cache
    result = _run(tuner, *args, **kwargs)
    if len(cache) > before and _searches():
        key, config = next(reversed(cache.items()))
        print(f"autotune {tuner.base_fn.__name__} {key}: {config}")
    return result


def prune(tuner: Any, kwargs: dict[str, Any]) -> list[Config]:
    """In place of ``Autotuner.prune_configs``: without a search, of what is left the first."""
    configs: list[Config] = _prune(tuner, kwargs)
    return configs if _searches() else configs[:1]


def bench(tuner: Any, *args: Any, config: Config, **kwargs: Any) -> Any:
    """In place of ``Autotuner._bench``: a configuration that does not fit into the machine is named, and not taken."""
    try:
        return _bench(tuner, *args, config=config, **kwargs)
    except AllocationError as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"autotune {tuner.base_fn.__name__}: {config} does not fit: {reason}", RuntimeWarning, stacklevel=1
        )
        return DOES_NOT_FIT


def _searches() -> bool:
    return context_of("autotune").frontends.triton.autotune == "search"
