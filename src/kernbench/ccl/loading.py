"""From an algorithm's configuration to its functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias

from kernbench.ccl.config import AlgorithmConfig, CclConfig
from kernbench.ccl.mappers import Mapper, mapper_called
from kernbench.ccl.names import (
    PASSED_KEYS,
    PASSED_PREFIX,
    first_line,
    foreign_key,
    known_keys,
    module_called,
    passes,
    topology_called,
    validator_called,
)
from kernbench.ccl.topologies import TopologyFunction, ranks_are_sips, world_size_of
from kernbench.ccl.validators import Validator
from kernbench.common.errors import ConfigError, InputError, Problem
from kernbench.topology.spec import TopologySpec

KernelArgs: TypeAlias = Callable[..., tuple[Any, ...]]
"""``kernel_args(*, n_elem, world_size, **config) -> tuple``: what the kernel gets behind its tensor."""
Neighbors: TypeAlias = Callable[[int, int, Mapping[str, int]], Mapping[str, int]]
"""``neighbors(rank, world_size, base) -> {direction: rank}``; ``base`` is what the topology says."""

_CONTRACT = (
    "an algorithm has kernel(t_ptr, *args, tl) and kernel_args(*, n_elem, world_size, **config) -> tuple, "
    "and may have neighbors(rank, world_size, base) -> {direction: rank}, config_keys (names of keys of ccl.yaml that "
    "kernel_args hands on) and own_topology (what `topology: none` means)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm: its configuration, its module's functions, and those that the configuration names."""

    config: AlgorithmConfig
    kernel: Callable[..., object]
    kernel_args: KernelArgs
    topology_fn: TopologyFunction
    mapper_fn: Mapper
    validator_fn: Validator
    neighbors: Neighbors | None

    def args_for(self, spec: TopologySpec, *, n_elem: int, sip_rank: int = 0, **more: Any) -> tuple[Any, ...]:
        """What the kernel gets behind its tensor on this machine, on SIP ``sip_rank``.

        ``kernel_args`` is told of the machine, of the queues, what passes through from the configuration, and ``more``.
        """
        config = self.config
        queues = {"n_slots": config.n_slots, "slot_size": config.slot_size, "buffer_kind": config.buffer_kind}
        world = {"world_size": world_size_of(spec, config), "ranks_are_sips": ranks_are_sips(spec, config)}
        values = machine_values(spec) | queues | world | dict(config.passthrough) | more
        with told_of(config):
            return tuple(self.kernel_args(n_elem=n_elem, sip_rank=sip_rank, **values))


@contextmanager
def told_of(config: AlgorithmConfig) -> Iterator[None]:
    """Errors of what an algorithm was given say where that stands."""
    try:
        yield
    except InputError as error:
        if config.passthrough:
            error.add_note(f"algorithm {config.name!r} has {config.passed}")
        raise


def machine_values(spec: TopologySpec) -> dict[str, Any]:
    """What ``kernel_args`` learns of the machine, by name; the SIPs of a fabric without rows are one row."""
    mesh, sips = spec.sip.cube_mesh, spec.system.sips
    return {
        "cube_w": mesh.w,
        "cube_h": mesh.h,
        "pes_per_cube": spec.pes_per_cube,
        "cubes_per_sip": spec.cubes_per_sip,
        "num_sips": sips.count,
        "sip_topology": sips.topology,
        "sip_w": sips.grid.w,
        "sip_h": sips.grid.h,
    }


def load_algorithm(config: AlgorithmConfig) -> Algorithm:
    """Find everything that an algorithm's configuration names.

    UnknownNameError for a name that is not built in, InputError for a path that leads nowhere and for a module that
    is not an algorithm, ConfigError for a key that it does not know.
    """
    owner, folder = config.label, config.folder
    module = module_called(config.module, owner, folder)
    problems = list(_problems(module))
    if problems:
        where = f"{owner}: module {config.module!r} ({module.__file__})"
        raise InputError(f"{where}: {'; '.join(problems)}; {_CONTRACT}")
    functions = vars(module)
    topology = config.topology if config.topology != "none" else functions.get("own_topology", "none")
    _check_keys(config, module, topology)
    return Algorithm(
        config=config,
        kernel=functions["kernel"],
        kernel_args=functions["kernel_args"],
        topology_fn=topology_called(topology, owner, folder),
        mapper_fn=mapper_called(config.mapper, owner, folder),
        validator_fn=validator_called(config.validator, owner, folder),
        neighbors=functions.get("neighbors"),
    )


def algorithms(cfg: CclConfig) -> tuple[tuple[str, str], ...]:
    """Name and description (the first line of its module's docstring) of every algorithm of a file, in its order."""
    return tuple(
        (each.name, first_line(module_called(each.module, each.label, each.folder))) for each in cfg.algorithms
    )


def _check_keys(config: AlgorithmConfig, module: ModuleType, topology: str) -> None:
    """ConfigError for keys that would have no effect."""
    known = known_keys(module, topology)
    foreign = [key for key, _ in config.passthrough if key not in known]
    if not foreign:
        return
    hint = "an algorithm names its keys: as parameters of kernel_args, or in config_keys of its module"
    nowhere = Problem(source=config.module, line=0, column=0, path="", message="")
    places = dict(config.passed_at)
    raise ConfigError(
        tuple(
            replace(places.get(key, nowhere), message=f"{foreign_key(config.name, key, known)}; {hint}")
            for key in foreign
        )
    )


def _problems(module: ModuleType) -> Iterator[str]:
    """What keeps a module from being an algorithm."""
    functions = vars(module)
    for name, takes in (("kernel", ("tl",)), ("kernel_args", ("n_elem", "world_size", "**config"))):
        if name not in functions:
            yield f"it has no {name}"
        elif not callable(functions[name]):
            yield f"its {name} is not a function"
        else:
            yield from _signature_problems(name, functions[name], takes)
    if not callable(functions.get("neighbors", first_line)):
        yield "its neighbors is not a function"
    keys = functions.get("config_keys", ())
    if not isinstance(keys, tuple | list) or not all(map(passes, keys)):
        allowed = f"{', '.join(PASSED_KEYS)} and names that begin with {PASSED_PREFIX}"
        yield f"its config_keys {keys!r} is no tuple of {allowed}"
    if not isinstance(functions.get("own_topology", "none"), str):
        yield "its own_topology is not a text"


def _signature_problems(name: str, function: Callable[..., object], takes: tuple[str, ...]) -> Iterator[str]:
    parameters = inspect.signature(function).parameters
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    lacking = [each for each in takes if not rest and each not in parameters]
    if lacking:
        yield f"its {name}{inspect.signature(function)} does not take {', '.join(lacking)}"
