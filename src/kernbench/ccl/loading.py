"""Loading of algorithms from ``ccl.yaml``: defaults, the settings of each algorithm, and the functions they name."""

from __future__ import annotations

import inspect
import os
import pkgutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from importlib import resources
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from kernbench.ccl import algorithms as package
from kernbench.ccl.config import AlgorithmConfig, AlgorithmSettings, CclConfig, Scalar
from kernbench.ccl.layouts import MAPPERS, VALIDATORS, Mapper, Validator
from kernbench.ccl.topologies import GRID_KEYS, TOPOLOGIES, TopologyFunction, ranks_are_sips, world_size_of
from kernbench.common.complaints import one_of, show
from kernbench.common.config import (
    Complaint,
    ConfigModel,
    Document,
    Size,
    apply_overrides,
    check,
    load_document,
    report,
)
from kernbench.common.errors import ConfigError, InputError, Problem, UnknownNameError, close_to
from kernbench.common.imports import import_file, import_module
from kernbench.common.values import value
from kernbench.messages.requests import Backpressure, BufferKind
from kernbench.messages.steps import ReduceName
from kernbench.topology.fields import LinkSpec
from kernbench.topology.spec import TopologySpec, current_topology_name
from kernbench.triton_emu.schedules import ScheduledKernel

# Keys that pass unchanged to the kernel_args of an algorithm that has them; so do all keys with the prefix.
PASSED_KEYS = ("reduce_op", "chunk_size", "root_cube")
PASSED_PREFIX = "kernel_"
_KEYS_OF_TOPOLOGY = {"torus_2d": GRID_KEYS, "mesh_2d_no_wrap": GRID_KEYS}


MODULES = tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))
"""The names of the algorithms that ship with the package; none of them is imported here."""


def module_called(text: str, owner: str, folder: Path | None = None) -> ModuleType:
    """Return the module of an algorithm: a built-in name, a dotted path or a ``.py`` file.

    Paths and files are relative to ``folder``. Raises UnknownNameError for a name that is none of these, and InputError
    for a module that cannot be imported.
    """
    label = f"{owner}: module {text!r}"
    if text.endswith(".py"):
        return import_file((folder or Path()) / text, label)
    if text in MODULES:
        return import_module(f"{package.__name__}.{text}", label)
    if is_path(text, folder):
        return import_module(text, label, folder)
    raise UnknownNameError("algorithm module", text, MODULES, "or a dotted path to one of yours, or a .py file")


def is_path(text: str, folder: Path | None = None) -> bool:
    """Return True if ``text`` names user code: it has a dot, or is a module in ``folder``."""
    return "." in text or (folder is not None and (folder / f"{text}.py").is_file())


def passes(key: object) -> bool:
    """Return True for a key of ``ccl.yaml`` that passes unchanged to the ``kernel_args`` of an algorithm."""
    return isinstance(key, str) and (key in PASSED_KEYS or key.startswith(PASSED_PREFIX))


def foreign_key(algorithm: str, key: str, keys: Sequence[str]) -> str:
    """Return the error text for a key that ``algorithm`` does not have."""
    return f"algorithm {algorithm!r} does not know {key!r}; {close_to(key, keys)}it knows: {', '.join(keys) or 'none'}"


def list_accepted_keys(module: ModuleType, topology: str) -> tuple[str, ...]:
    """Return the keys of ``ccl.yaml`` that have an effect on an algorithm.

    The keys are the parameters of its ``kernel_args``, the names in ``config_keys`` of its module, and the keys of its
    topology.
    """
    kernel, kernel_args = kernel_of(module)
    parameters = kernel.keys if isinstance(kernel, ScheduledKernel) else inspect.signature(kernel_args).parameters
    listed, of_topology = vars(module).get("config_keys", ()), _KEYS_OF_TOPOLOGY.get(topology, ())
    return tuple(dict.fromkeys([*filter(passes, parameters), *listed, *of_topology]))


def first_line(documented: Any) -> str:
    """Return the first line of the docstring of a module or a function; empty without one."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


KernelArgs: TypeAlias = Callable[..., tuple[Any, ...]]
"""``kernel_args(*, n_elem, world_size, **config) -> tuple``: the arguments of the kernel after its tensor."""
Neighbors: TypeAlias = Callable[[int, int, Mapping[str, int]], Mapping[str, int]]
"""``neighbors(rank, world_size, base) -> {direction: rank}``; ``base`` has the neighbours of the topology."""

_TAKES: Mapping[str, tuple[str, ...]] = {
    "schedule": ("rank", "world_size", "n_elem"),
    "kernel": ("tl",),
    "kernel_args": ("n_elem", "world_size", "**config"),
}
_CONTRACT = (
    "an algorithm has schedule(*, rank, world_size, n_elem, …) -> steps, "
    "or kernel(t_ptr, *args, tl) and kernel_args(*, n_elem, world_size, **config) -> tuple, "
    "and may have neighbors(rank, world_size, base) -> {direction: rank}, config_keys (names of keys of ccl.yaml that "
    "kernel_args passes on) and own_topology (the meaning of `topology: none`)"
)


@value(kw_only=True)
class Algorithm:
    """An algorithm: its configuration, the functions of its module, and the functions that the configuration names."""

    config: AlgorithmConfig
    kernel: Callable[..., object]
    kernel_args: KernelArgs
    topology_fn: TopologyFunction
    mapper_fn: Mapper
    validator_fn: Validator
    neighbors: Neighbors | None

    def args_for(self, spec: TopologySpec, *, n_elem: int, sip_rank: int = 0, **more: Any) -> tuple[Any, ...]:
        """Return the arguments of the kernel after its tensor on this machine, on SIP ``sip_rank``.

        ``kernel_args`` receives the values of the machine and of the queues, the keys of the configuration that pass
        through, and ``more``. ``dtype`` defaults to f32.
        """
        config = self.config
        queues = {"n_slots": config.n_slots, "slot_size": config.slot_size, "buffer_kind": config.buffer_kind}
        world = {"world_size": world_size_of(spec, config), "ranks_are_sips": ranks_are_sips(spec, config)}
        values = {"dtype": "f32"} | machine_values(spec) | queues | world | dict(config.passthrough) | more
        with note_settings(config):
            return tuple(self.kernel_args(n_elem=n_elem, sip_rank=sip_rank, **values))


@contextmanager
def note_settings(config: AlgorithmConfig) -> Iterator[None]:
    """Add the settings of an algorithm, with their places in the file, to errors that its functions raise."""
    try:
        yield
    except InputError as error:
        if config.passthrough:
            error.add_note(f"algorithm {config.name!r} has {config.passed}")
        raise


def machine_values(spec: TopologySpec) -> dict[str, Any]:
    """Return the arguments of ``kernel_args`` that describe the machine, by name; SIPs without a grid form a row."""
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
    """Load the module and the functions that an algorithm's configuration names.

    Raises UnknownNameError for a name that is not built in, and ConfigError for a key that the algorithm does not have.
    Raises InputError for a path that leads nowhere, and for a module that is not an algorithm.
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
        topology_fn=config.find_named("topology", current_topology_name(topology), TOPOLOGIES),
        mapper_fn=config.find_named("mapper", config.mapper, MAPPERS),
        validator_fn=config.find_named("validator", config.validator, VALIDATORS),
        neighbors=functions.get("neighbors"),
    )


def kernel_of(module: ModuleType) -> tuple[Callable[..., object], KernelArgs]:
    """Return the kernel of an algorithm's module and the function that computes its arguments; a schedule is both."""
    functions = vars(module)
    if "kernel" in functions:
        return functions["kernel"], functions["kernel_args"]
    kernel = ScheduledKernel(functions["schedule"])
    return kernel, kernel.args


def algorithms(cfg: CclConfig) -> tuple[tuple[str, str], ...]:
    """Return (name, description) of every algorithm of a file, in order.

    The description is the first line of the module's docstring.
    """
    return tuple(
        (algorithm.name, first_line(module_called(algorithm.module, algorithm.label, algorithm.folder)))
        for algorithm in cfg.algorithms
    )


def _check_keys(config: AlgorithmConfig, module: ModuleType, topology: str) -> None:
    """Raise ConfigError for keys that would have no effect."""
    accepted_keys = list_accepted_keys(module, topology)
    foreign = [key for key, _ in config.passthrough if key not in accepted_keys]
    if not foreign:
        return
    hint = "an algorithm names its keys: as parameters of kernel_args, or in config_keys of its module"
    nowhere = Problem(source=config.module, line=0, column=0, path="", message="")
    places = dict(config.passed_at)
    raise ConfigError(
        tuple(
            replace(places.get(key, nowhere), message=f"{foreign_key(config.name, key, accepted_keys)}; {hint}")
            for key in foreign
        )
    )


def _problems(module: ModuleType) -> Iterator[str]:
    """Yield each reason why a module is not an algorithm."""
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
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    lacking = [parameter for parameter in _TAKES[name] if not takes_any and parameter not in parameters]
    if lacking:
        yield f"its {name}{inspect.signature(function)} does not take {', '.join(lacking)}"


LOCAL_FILE = "ccl.yaml"
IDLE_KEY = "vc_chunk_size"
# Keys of ``defaults`` only. A mapping that merges the defaults with an algorithm's section has them too.
_OF_DEFAULTS = ("algorithm", "strict")

_Count = Annotated[int, Field(ge=1, le=1 << 50)]
_SectionPath: TypeAlias = tuple[str, ...]


def _make_name_check(kind: str, names: Collection[str]) -> AfterValidator:
    """Return a check that a name is built in, or a path relative to the folder of the file."""

    def check_name(name: str, info: ValidationInfo) -> str:
        if name not in names and not is_path(name, info.context):
            raise ValueError(
                f"unknown {kind} {name!r}; {close_to(name, names)}there are: {one_of(names)}; or a path to one of yours"
            )
        return name

    return AfterValidator(check_name)


class _Settings(ConfigModel):
    """The keys of ``defaults`` and of every algorithm; None marks a key that is not set."""

    topology: (
        Annotated[str, BeforeValidator(current_topology_name), _make_name_check("topology", TOPOLOGIES)] | None
    ) = None
    mapper: Annotated[str, _make_name_check("mapper", MAPPERS)] | None = None
    validator: Annotated[str, _make_name_check("validator", VALIDATORS)] | None = None
    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    poll_ns: Annotated[float, Field(ge=0.001, le=1e12)] | None = None
    n_slots: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    slot_size: Annotated[Size, Field(ge=64, multiple_of=16)] | None = None
    ipcq_credit_size_bytes: Annotated[Size, Field(le=1 << 20)] | None = None
    n_elem: _Count | None = None
    world_size: _Count | None = None
    reduce_op: ReduceName | None = None
    chunk_size: Size | None = None
    root_cube: Annotated[int, Field(ge=0)] | None = None


class _Defaults(_Settings):
    algorithm: str | None = None
    strict: bool = False


class _AlgorithmSection(_Settings):
    module: Annotated[str, _make_name_check("module", MODULES)]


class _CclFile(ConfigModel):
    defaults: _Defaults = _Defaults()
    algorithms: dict[str, _AlgorithmSection] = Field(min_length=1)


def load_ccl_config(path: str | os.PathLike[str] | None = None, overrides: Iterable[str] = ()) -> CclConfig:
    """Read a file; None means ./ccl.yaml, or the packaged file if there is none.

    ``overrides`` are ``path=value`` texts, as of ``--set``. Raises ConfigError with every problem, in file order. Warns
    of keys that do nothing.
    """
    return ccl_config_of(apply_overrides(load_document(_file(path)), overrides))


def ccl_config_of(document: Document) -> CclConfig:
    """Return the configuration in a parsed file. Raises ConfigError with every problem, in file order."""
    data = deepcopy(document.data)
    passed = {path: _take_out(section) for path, section in _sections(data)}
    folder = Path(document.source).absolute().parent
    checked = check(Document(document.source, data, document.marks), _CclFile, context=folder)
    rules = _not_passable(passed), _broken_rules(document), _foreign_keys(document)
    report(document, [*checked.complaints, *chain(*rules)])
    assert checked.value is not None, "a document without complaints has a value"
    for path, section in _sections(document.data):
        if IDLE_KEY in section:
            place = document.place((*path, IDLE_KEY))
            warnings.warn(f"{place.source}:{place.key[0]}: {IDLE_KEY} does nothing; leave it out", stacklevel=3)
    file = checked.value
    resolved = tuple(_resolve_settings(name, file, passed, document, folder) for name in file.algorithms)
    report(document, _chunks_without_slot(document, resolved))
    return CclConfig(document.source, file.defaults.algorithm, resolved)


def check_ccl(path: str | os.PathLike[str]) -> None:
    """Check a file and its default algorithm before anything runs.

    Raises as ``load_ccl_config`` and ``load_algorithm``.
    """
    cfg = load_ccl_config(path)
    if cfg.default_algorithm is not None or len(cfg.algorithms) == 1:
        load_algorithm(cfg.algorithm())


CclLike: TypeAlias = CclConfig | AlgorithmConfig | Mapping[str, Any] | str | os.PathLike[str] | None
"""A loaded configuration, its file (None: as ``load_ccl_config``), or one algorithm, typed or as a mapping"""


def as_ccl_config(config: CclLike, fallback: Mapping[str, Any] | None = None) -> CclConfig:
    """Return the configuration that ``config`` describes.

    A mapping has the form of ``ccl.yaml``: the complete file, or the section of one algorithm with or without
    ``defaults``, as ``resolve_algorithm_config`` returns it. ``fallback`` supplies keys that the section lacks. Raises
    ConfigError with every problem.
    """
    if isinstance(config, CclConfig):
        return config
    if isinstance(config, AlgorithmConfig):
        return CclConfig(config.place, config.name, (config,))
    if not isinstance(config, Mapping):
        return load_ccl_config(config)
    if "algorithms" in config:
        return ccl_config_of(Document("cfg", dict(config), {}))
    section = dict(fallback or {}) | {key: list(v) if isinstance(v, tuple) else v for key, v in config.items()}
    defaults = {key: section.pop(key) for key in _OF_DEFAULTS if key in section}
    name = defaults.setdefault("algorithm", section.get("module") or "algorithm")
    origin = config.origin if isinstance(config, AlgorithmSettings) else None
    source = "cfg" if origin is None or origin.folder is None else str(origin.folder / "cfg")
    return ccl_config_of(Document(source, {"defaults": defaults, "algorithms": {name: section}}, {}))


def _file(path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        return os.fspath(path)
    return LOCAL_FILE if Path(LOCAL_FILE).exists() else find_packaged_file()


def find_packaged_file() -> str:
    """Return the path of the ``ccl.yaml`` that ships with the package."""
    return str(resources.files("kernbench") / "defaults" / LOCAL_FILE)


def _take_out(section: dict[str, Any]) -> dict[str, Any]:
    """Remove from ``section`` the keys that are passed through, and return them; drop the key that does nothing."""
    section.pop(IDLE_KEY, None)
    return {name: section.pop(name) for name in tuple(section) if name.startswith(PASSED_PREFIX)}


def _not_passable(passed: Mapping[_SectionPath, Mapping[str, Any]]) -> Iterator[Complaint]:
    for path, entries in passed.items():
        for name, entry in entries.items():
            if not all(isinstance(item, Scalar) for item in (entry if isinstance(entry, list) else [entry])):
                wanted = "must be a number, a text, true or false, or a list of those"
                yield Complaint((*path, name), f"found {show(entry)}, {wanted}")


def _sections(data: Mapping[str, Any]) -> Iterator[tuple[_SectionPath, dict[str, Any]]]:
    """Yield the sections of a file that hold settings, valid or not."""
    algorithms = data.get("algorithms")
    named = algorithms.items() if isinstance(algorithms, dict) else ()
    candidates = [(("defaults",), data.get("defaults")), *((("algorithms", name), section) for name, section in named)]
    yield from ((path, section) for path, section in candidates if isinstance(section, dict))


def _broken_rules(document: Document) -> Iterator[Complaint]:
    """Yield a complaint for each broken rule between entries, independent of other problems."""
    for path, section in _sections(document.data):
        topologies = section.get("topology"), document.get(("defaults", "topology"))
        if path[0] == "algorithms" and topologies == (None, None):
            yield Complaint(path, "missing key 'topology', here or in defaults", at_key=True)
    named, algorithms = document.get(("defaults", "algorithm")), document.get(("algorithms",))
    if isinstance(named, str) and isinstance(algorithms, dict) and named not in algorithms:
        hint = f"{close_to(named, algorithms)}there are: {one_of(algorithms)}"
        yield Complaint(("defaults", "algorithm"), f"no algorithm {named!r}; {hint}")


def _foreign_keys(document: Document) -> Iterator[Complaint]:
    """Yield a complaint for each key of a shipped algorithm that would have no effect.

    The keys of the user's algorithms are checked when the algorithms are loaded.
    """
    sections = dict(_sections(document.data))
    defaults, default = sections.pop(("defaults",), {}), _default_name(document)
    for path, section in sections.items():
        module, topology = section.get("module"), section.get("topology", defaults.get("topology"))
        reaching = {path: section} if path[1] != default else {path: section, ("defaults",): defaults}
        passed = [(*at, key) for at, keys in reaching.items() for key in keys if passes(key)]
        if passed and isinstance(module, str) and isinstance(topology, str) and module in MODULES:
            accepted_keys = list_accepted_keys(module_called(module, path[1]), current_topology_name(topology))
            foreign = [at for at in passed if at[-1] not in accepted_keys]
            yield from (Complaint(at, foreign_key(path[1], at[-1], accepted_keys), at_key=True) for at in foreign)


def _default_name(document: Document) -> object:
    """Return the algorithm that applies if none is named; None if that is an error."""
    algorithms = document.get(("algorithms",))
    only = next(iter(algorithms)) if isinstance(algorithms, dict) and len(algorithms) == 1 else None
    return document.get(("defaults", "algorithm")) or only


def _chunks_without_slot(document: Document, resolved: Iterable[AlgorithmConfig]) -> Iterator[Complaint]:
    """Yield a complaint for each shipped algorithm whose messages are larger than a slot."""
    for algorithm in resolved:
        size, path = dict(algorithm.passthrough).get("chunk_size"), _where(document, algorithm.name, "chunk_size")
        used = path[0] != "defaults" or algorithm.name == _default_name(document)
        if used and isinstance(size, int) and size > algorithm.slot_size and algorithm.module in MODULES:
            yield Complaint(path, f"found {size}; a message has to fit a slot (slot_size {algorithm.slot_size})")


def _where(document: Document, algorithm: str, key: str) -> tuple[str, ...]:
    """Return the path of a setting of an algorithm: in its section, else in the defaults."""
    path = ("algorithms", algorithm, key)
    return path if document.get(path) is not None else ("defaults", key)


def _resolve_settings(
    name: str, file: _CclFile, passed: Mapping[_SectionPath, Mapping[str, Any]], document: Document, folder: Path
) -> AlgorithmConfig:
    """Return the settings of an algorithm over the defaults."""
    values = _drop_unset(file.defaults) | _drop_unset(file.algorithms[name])
    values.pop("algorithm", None)
    through = {key: values.pop(key) for key in PASSED_KEYS if key in values}
    through |= {**passed.get(("defaults",), {}), **passed["algorithms", name]}
    entries = ((key, tuple(value) if isinstance(value, list) else value) for key, value in sorted(through.items()))
    here = document.place(("algorithms", name))
    return AlgorithmConfig(
        name=name,
        **values,
        passthrough=tuple(entries),
        folder=folder,
        place=f"{here.source}:{here.key[0]}" if here.key[0] else "",
        passed_at=tuple(
            (key, document.problem(Complaint(_where(document, name, key), "", at_key=True))) for key in through
        ),
    )


def _drop_unset(section: _Settings) -> dict[str, Any]:
    return {name: value for name, value in section if value is not None}


# Bytes in flight: bandwidth times delay of the specification, on an uncontended path as long as half a die. A schedule
# runs ahead by that much: less leaves gaps on the links, more delays urgent messages behind others.


def hop_bytes(spec: TopologySpec) -> tuple[int, int, int]:
    """Return the bytes in flight on a hop of a tree and back, for a hop within a cube, between cubes, between SIPs."""
    pe, sip, system = spec.pe.components, spec.sip, spec.system
    ends = 2 * pe.pe_ipcq.attrs.overhead_ns + spec.pe.dma.setup_ns + spec.pe.math.startup_ns
    in_cube = ends + 2 * _across_cube_ns(spec)
    ucie, port = spec.cube.components.ucie.attrs.overhead_ns, sip.components
    between_cubes = 4 * ucie + 2 * _wire_ns(spec, sip.links.cube_to_cube)
    chiplet = port.ucie.attrs.overhead_ns + port.io_noc.attrs.overhead_ns + port.sip_port.attrs.overhead_ns
    between_sips = 2 * (2 * (ucie + chiplet) + _wire_ns(spec, system.links.sip_to_sip))
    local, cubes, sips = spec.cube.links.pe_to_xbar, sip.links.cube_to_cube, system.links.sip_to_sip
    return (
        int(in_cube * local.bw_gbs),
        int((in_cube + between_cubes) * min(local.bw_gbs, cubes.bw_gbs)),
        int((in_cube + between_sips) * min(local.bw_gbs, sips.bw_gbs)),
    )


def load_bytes(spec: TopologySpec) -> int:
    """Return the bandwidth-delay product, in bytes, of loads of a PE from its slice of HBM."""
    links = spec.cube.links
    delay = spec.pe.dma.setup_ns + 2 * spec.cube.components.xbar.attrs.overhead_ns
    delay += spec.cube.hbm_access_ns
    return int(delay * min(links.pe_to_xbar.bw_gbs, links.xbar_to_hbm.bw_gbs))


def _across_cube_ns(spec: TopologySpec) -> float:
    components = spec.cube.components
    routers = (spec.cube.noc.w + spec.cube.noc.h) / 2
    wire = (spec.cube.size_mm.w + spec.cube.size_mm.h) / 2 * spec.ns_per_mm
    return 2 * components.xbar.attrs.overhead_ns + routers * components.noc_router.attrs.overhead_ns + wire


def _wire_ns(spec: TopologySpec, link: LinkSpec) -> float:
    return (link.length_mm or 0) * spec.ns_per_mm + link.overhead_ns
