"""From an algorithm's configuration to its functions: built-in names, and what leads to code of the user's."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from kernbench.ccl import algorithms as package
from kernbench.ccl.config import AlgorithmConfig, AlgorithmSettings, CclConfig
from kernbench.ccl.delays import hop_bytes, load_bytes
from kernbench.ccl.layouts import MAPPERS, VALIDATORS, Mapper, Validator
from kernbench.ccl.topologies import GRID_KEYS, TOPOLOGIES, TopologyFunction, ranks_are_sips, world_size_of
from kernbench.common.errors import ConfigError, InputError, Problem, UnknownNameError, close_to
from kernbench.common.imports import import_file, import_module
from kernbench.common.values import value
from kernbench.topology.spec import TopologySpec, current_topology_name
from kernbench.triton_emu.schedules import ScheduledKernel

# Keys that an algorithm's kernel_args gets as they stand, if it knows them; so are all that begin with the prefix.
PASSED_KEYS = ("reduce_op", "chunk_size", "root_cube")
PASSED_PREFIX = "kernel_"
_KEYS_OF_TOPOLOGY = {"torus_2d": GRID_KEYS, "mesh_2d_no_wrap": GRID_KEYS}


MODULES = tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))
"""The algorithms that ship with the package; nothing of them is imported."""


def module_called(text: str, owner: str, folder: Path | None = None) -> ModuleType:
    """The module of an algorithm: a built-in name, a dotted path, or a ``.py`` file, the latter two from ``folder``.

    UnknownNameError for a name that is none of these; InputError for a module that cannot be imported.
    """
    what = f"{owner}: module {text!r}"
    if text.endswith(".py"):
        return import_file((folder or Path()) / text, what)
    if text in MODULES:
        return import_module(f"{package.__name__}.{text}", what)
    if is_path(text, folder):
        return import_module(text, what, folder)
    raise UnknownNameError("algorithm module", text, MODULES, "or a dotted path to one of yours, or a .py file")


def is_path(text: str, folder: Path | None = None) -> bool:
    """Whether ``text`` leads to code of the user's: it has a dot, or is the name of a module in ``folder``."""
    return "." in text or (folder is not None and (folder / f"{text}.py").is_file())


def passes(key: object) -> bool:
    """Whether a key of ``ccl.yaml`` is for the algorithm to make sense of."""
    return isinstance(key, str) and (key in PASSED_KEYS or key.startswith(PASSED_PREFIX))


def foreign_key(algorithm: str, key: str, known: Sequence[str]) -> str:
    """What is said of a key that ``algorithm`` does not know."""
    return (
        f"algorithm {algorithm!r} does not know {key!r}; {close_to(key, known)}it knows: {', '.join(known) or 'none'}"
    )


def known_keys(module: ModuleType, topology: str) -> tuple[str, ...]:
    """The keys of ``ccl.yaml`` that have an effect on an algorithm.

    Those that its ``kernel_args`` has as parameters, its module names in ``config_keys`` or its topology takes.
    """
    kernel, kernel_args = kernel_of(module)
    own = kernel.keys if isinstance(kernel, ScheduledKernel) else inspect.signature(kernel_args).parameters
    listed, of_topology = vars(module).get("config_keys", ()), _KEYS_OF_TOPOLOGY.get(topology, ())
    return tuple(dict.fromkeys([*filter(passes, own), *listed, *of_topology]))


def first_line(what: Any) -> str:
    """What a module or a function says of itself in the first line of its docstring; empty when nothing."""
    return (what.__doc__ or "").strip().partition("\n")[0]


KernelArgs: TypeAlias = Callable[..., tuple[Any, ...]]
"""``kernel_args(*, n_elem, world_size, **config) -> tuple``: what the kernel gets behind its tensor."""
Neighbors: TypeAlias = Callable[[int, int, Mapping[str, int]], Mapping[str, int]]
"""``neighbors(rank, world_size, base) -> {direction: rank}``; ``base`` is what the topology says."""

_TAKES: Mapping[str, tuple[str, ...]] = {
    "schedule": ("rank", "world_size", "n_elem"),
    "kernel": ("tl",),
    "kernel_args": ("n_elem", "world_size", "**config"),
}
_CONTRACT = (
    "an algorithm has schedule(*, rank, world_size, n_elem, …) -> steps, "
    "or kernel(t_ptr, *args, tl) and kernel_args(*, n_elem, world_size, **config) -> tuple, "
    "and may have neighbors(rank, world_size, base) -> {direction: rank}, config_keys (names of keys of ccl.yaml that "
    "kernel_args hands on) and own_topology (what `topology: none` means)"
)


@value(kw_only=True)
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

        ``kernel_args`` is told of the machine, of the queues, what passes through from the configuration, and ``more``;
        of f32 when that says no ``dtype``.
        """
        config = self.config
        queues = {"n_slots": config.n_slots, "slot_size": config.slot_size, "buffer_kind": config.buffer_kind}
        world = {"world_size": world_size_of(spec, config), "ranks_are_sips": ranks_are_sips(spec, config)}
        values = {"dtype": "f32"} | machine_values(spec) | queues | world | dict(config.passthrough) | more
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
        "scratch_bytes": spec.pe.tcm.scratch_bytes,
        "hop_bytes": hop_bytes(spec),
        "load_bytes": load_bytes(spec),
    }


def load_algorithm(config: AlgorithmConfig | AlgorithmSettings) -> Algorithm:
    """Find everything that an algorithm's configuration names.

    UnknownNameError for a name that is not built in, InputError for a path that leads nowhere and for a module that
    is not an algorithm, ConfigError for a key that it does not know.
    """
    config = config.typed if isinstance(config, AlgorithmSettings) else config
    module = module_called(config.module, config.label, config.folder)
    problems = list(_problems(module))
    if problems:
        where = f"{config.label}: module {config.module!r} ({module.__file__})"
        raise InputError(f"{where}: {'; '.join(problems)}; {_CONTRACT}")
    kernel, kernel_args = kernel_of(module)
    functions = vars(module)
    topology = config.topology if config.topology != "none" else functions.get("own_topology", "none")
    _check_keys(config, module, topology)
    return Algorithm(
        config=config,
        kernel=kernel,
        kernel_args=kernel_args,
        topology_fn=config.named("topology", current_topology_name(topology), TOPOLOGIES),
        mapper_fn=config.named("mapper", config.mapper, MAPPERS),
        validator_fn=config.named("validator", config.validator, VALIDATORS),
        neighbors=functions.get("neighbors"),
    )


def kernel_of(module: ModuleType) -> tuple[Callable[..., object], KernelArgs]:
    """The kernel of an algorithm's module, and what makes its arguments; of one with a schedule only, that as both."""
    functions = vars(module)
    if "kernel" in functions:
        return functions["kernel"], functions["kernel_args"]
    kernel = ScheduledKernel(functions["schedule"])
    return kernel, kernel.args


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
    for name in ("schedule",) if "schedule" in functions and "kernel" not in functions else ("kernel", "kernel_args"):
        if name not in functions:
            yield f"it has no {name}"
        elif not callable(functions[name]):
            yield f"its {name} is not a function"
        else:
            yield from _signature_problems(name, functions[name])
    if not callable(functions.get("neighbors", first_line)):
        yield "its neighbors is not a function"
    keys = functions.get("config_keys", ())
    if not isinstance(keys, tuple | list) or not all(map(passes, keys)):
        allowed = f"{', '.join(PASSED_KEYS)} and names that begin with {PASSED_PREFIX}"
        yield f"its config_keys {keys!r} is no tuple of {allowed}"
    if not isinstance(functions.get("own_topology", "none"), str):
        yield "its own_topology is not a text"


def _signature_problems(name: str, function: Callable[..., object]) -> Iterator[str]:
    parameters = inspect.signature(function).parameters
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    lacking = [each for each in _TAKES[name] if not rest and each not in parameters]
    if lacking:
        yield f"its {name}{inspect.signature(function)} does not take {', '.join(lacking)}"
