"""``triton.autotune`` by simulated time; results of a search are cached across runs."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import field
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from triton.runtime.autotuner import Autotuner, Config

from kernbench.common.errors import AllocationError
from kernbench.common.values import state
from kernbench.frontends.triton.launch import context_of

TuningKey: TypeAlias = tuple[object, ...]
"""The arguments of a kernel that a choice depends on"""
_run, _prune, _bench = Autotuner.run, Autotuner.prune_configs, Autotuner._bench  # noqa: SLF001 - replaced below
DOES_NOT_FIT = [float("inf")] * 3
"""Triton's times for a configuration that cannot run."""
FOLDER = "KERNBENCH_CACHE"
"""The environment variable with the folder for cached searches; the default is the user's cache."""


@state
class TunedConfigs:
    """The configurations that a rank has chosen, by tuner. They are valid for this machine only."""

    caches: dict[int, dict[TuningKey, Config]] = field(default_factory=dict)

    def of(self, tuner: Autotuner) -> dict[TuningKey, Config]:
        """Return the chosen configurations of a tuner, by the arguments of the kernel."""
        return self.caches.setdefault(id(tuner), {})


def run(tuner: Autotuner, *args: object, **kwargs: object) -> object:
    """Run the tuned kernel. Each simulation chooses the configuration anew. Replaces ``Autotuner.run``."""
    local = context_of(tuner.base_fn.__name__).rank_local
    chosen = local.get(TunedConfigs)
    if chosen is None:
        local.put(chosen := TunedConfigs())
    before = len(cache := chosen.of(tuner))
    tuner.cache, tuner.cache_results = cache, _searches()
    result = _run(tuner, *args, **kwargs)
    if len(cache) > before and not _searches():
        key, config = next(reversed(cache.items()))
        print(
            f"autotune {tuner.base_fn.__name__} {key}: the first of {len(tuner.configs)} configurations, {config}; "
            f"--set triton.autotune=search finds the fastest"
        )
    return result


def prune(tuner: Autotuner, kwargs: dict[str, object]) -> list[Config]:
    """Return the configurations to try; only the first if search is off. Replaces ``Autotuner.prune_configs``."""
    configs = list(_prune(tuner, kwargs))
    return configs if _searches() else configs[:1]


def bench(tuner: Autotuner, *args: object, config: Config, **kwargs: object) -> float | list[float]:
    """Measure a configuration; if it does not fit into the machine, warn. Replaces ``Autotuner._bench``."""
    try:
        return _bench(tuner, *args, config=config, **kwargs)
    except AllocationError as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"autotune {tuner.base_fn.__name__}: {config} does not fit: {reason}", RuntimeWarning, stacklevel=1
        )
        return DOES_NOT_FIT


def recall(tuner: Autotuner, tuning_key: TuningKey, configs: Sequence[Config], search: Callable[[], None]) -> bool:
    """Search, unless the cache has the results. Print the results. Replaces ``Autotuner.check_disk_cache``."""
    path = _folder() / f"{_digest_of(tuner, tuning_key, configs)}.json"
    times = _read(path, len(configs))
    if times is None:
        search()
        timings = [tuner.configs_timings[config] for config in configs]
        _write(path, [timing[0] if isinstance(timing, list | tuple) else timing for timing in timings])
    else:
        tuner.configs_timings = dict(zip(configs, times, strict=True))
        tuner.cache[tuning_key] = min(configs, key=tuner.configs_timings.__getitem__)
    _print_table(tuner, tuning_key, configs, "searched" if times is None else f"cached in {path}")
    return times is not None


def _print_table(tuner: Autotuner, tuning_key: TuningKey, configs: Sequence[Config], origin: str) -> None:
    print(f"autotune {tuner.base_fn.__name__} {tuning_key}, {origin}:")
    for config in configs:
        ms = tuner.configs_timings[config]
        ms = ms[0] if isinstance(ms, list | tuple) else ms
        time = "does not fit" if math.isinf(ms) else f"{ms:.6f} ms"
        print(f"  {time:>14}  {config}{'  <- taken' * (config is tuner.cache[tuning_key])}")


def _digest_of(tuner: Autotuner, tuning_key: TuningKey, configs: Sequence[Config]) -> str:
    """Return a digest of everything that times depend on: source, key, configurations, machine, settings, version."""
    context, function = context_of("autotune"), tuner.base_fn
    settings = context.frontends
    parts = (
        Path(function.__code__.co_filename).read_text() if os.path.exists(function.__code__.co_filename) else "",
        function.__qualname__,
        str(tuning_key),
        *map(str, configs),
        context.engine.topology.digest,
        str(settings.torch.cubes),
        settings.triton.order,
        version("kernbench"),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _folder() -> Path:
    chosen = os.environ.get(FOLDER)
    if chosen:
        return Path(chosen) / "autotune"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernbench" / "autotune"


def _read(path: Path, configs: int) -> list[float] | None:
    """Return the times of a cached search; None if there is none, or its file is malformed."""
    try:
        times = [math.inf if ms is None else float(ms) for ms in json.loads(path.read_text())["ms"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return times if len(times) == configs else None


def _write(path: Path, times: Sequence[float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ms": [None if math.isinf(ms) else ms for ms in times]}))
    except OSError as error:
        print(f"autotune: the result is not cached: {error}; set {FOLDER} to another folder")


def _searches() -> bool:
    return context_of("autotune").frontends.triton.autotune == "search"
