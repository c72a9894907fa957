"""Typed configuration of an algorithm and its queues; ``loading.py`` reads it from ``ccl.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from kernbench.common.complaints import one_of, show
from kernbench.common.errors import InputError, Problem, UnknownNameError
from kernbench.common.imports import F, find_function
from kernbench.common.values import value
from kernbench.messages.requests import Backpressure, BufferKind
from kernbench.messages.steps import REDUCE_OPS, ReduceName
from kernbench.policy.address.allocator import ALIGNMENT_BYTES

Scalar: TypeAlias = int | float | str | bool
Passed: TypeAlias = Scalar | tuple[Scalar, ...]


@value
class SlotSize:
    """The slots of a queue: their number, and the bytes of each."""

    n_slots: int
    slot_size: int

    @property
    def ring_bytes(self) -> int:
        """The bytes of a ring in memory, rounded up to the alignment of allocations."""
        return -(-self.n_slots * self.slot_size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@value(kw_only=True)
class QueueSettings:
    """Settings common to all queues of an installation."""

    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    poll_ns: float = 50.0
    n_slots: int = 4
    slot_size: int = 4096
    ipcq_credit_size_bytes: int = 16

    @property
    def slots(self) -> SlotSize:
        """The slots of each queue."""
        return SlotSize(self.n_slots, self.slot_size)


@value(kw_only=True)
class AlgorithmConfig(QueueSettings):
    """An algorithm with all its settings, including those of its queues.

    ``module``, ``topology``, ``mapper``, ``validator`` are built-in names, or paths relative to ``folder``.
    ``world_size`` None means one rank per SIP. With ``ranks_are_pes``, ranks are PEs even if there are as many ranks as
    SIPs. ``passthrough`` has the keyword arguments of ``kernel_args`` beside ``n_elem``. With ``strict``, an all-reduce
    that the algorithm cannot perform is an error. ``place`` and ``passed_at`` are the places in the file of the
    algorithm and of each ``passthrough`` key, for error messages.
    """

    name: str
    module: str
    topology: str
    mapper: str = "leader_only"
    validator: str = "single_shard_per_rank"
    n_elem: int | None = None
    world_size: int | None = None
    ranks_are_pes: bool = False
    passthrough: tuple[tuple[str, Passed], ...] = ()
    strict: bool = False
    folder: Path | None = field(default=None, repr=False)
    place: str = field(default="", compare=False, repr=False)
    passed_at: tuple[tuple[str, Problem], ...] = field(default=(), compare=False, repr=False)

    @property
    def label(self) -> str:
        """The name of the algorithm in errors."""
        return f"{self.place}: algorithm {self.name!r}" if self.place else f"algorithm {self.name!r}"

    def find_named(self, kind: str, text: str, builtins: Mapping[str, F]) -> F:
        """Return the function that ``text`` names for a role, such as ``mapper``. Raises as ``find_function``."""
        return find_function(kind, text, builtins, f"{self.label}: {kind} {text!r}", self.folder)

    @property
    def passed(self) -> str:
        """The keys that pass through to the algorithm, as text for error messages."""
        places = dict(self.passed_at)
        settings = ((key, show(value), places.get(key)) for key, value in self.passthrough)
        return ", ".join(f"{key}={value}" + (f" ({at.source}:{at.line})" if at else "") for key, value, at in settings)

    @property
    def reduce_op(self) -> ReduceName:
        """The default reduction of the algorithm."""
        return next((op for op in REDUCE_OPS if ("reduce_op", op) in self.passthrough), "sum")


@value
class CclConfig:
    """The contents of a ``ccl.yaml``: algorithms in the order of the file, and the default algorithm."""

    source: str
    default_algorithm: str | None
    algorithms: tuple[AlgorithmConfig, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the algorithms."""
        return tuple(algorithm.name for algorithm in self.algorithms)

    def algorithm(self, name: str | None = None) -> AlgorithmConfig:
        """Return the algorithm called ``name``; without a name the default, or the only one.

        Raises UnknownNameError, which lists the algorithms, for an unknown name; InputError if neither exists.
        """
        wanted = name or self.default_algorithm
        if wanted is None:
            if len(self.algorithms) > 1:
                names = one_of(self.names)
                raise InputError(f"{self.source} has no defaults.algorithm; name one of its algorithms: {names}")
            return self.algorithms[0]
        match = next((candidate for candidate in self.algorithms if candidate.name == wanted), None)
        if match is None:
            raise UnknownNameError("algorithm", wanted, self.names, f"they are in {self.source}")
        return match


class AlgorithmSettings(dict[str, Any]):
    """An algorithm's settings, under the keys of ``ccl.yaml``, as a mapping that a program may change and pass on.

    The entry ``algorithm`` is the name. Keys that pass through to the algorithm are entries of the same mapping. A
    function that receives the settings (``install_ipcq``, ``configure_sfr_intercube_multisip``, …) checks them like a
    file.
    ``kernel_args(n_elem=…, world_size=…, **settings)`` accepts them directly. Attributes are those of the equivalent
    ``AlgorithmConfig``.
    """

    __slots__ = ("origin",)

    def __init__(self, origin: AlgorithmConfig) -> None:
        """Copy the settings of ``origin`` except those that are None."""
        self.origin = origin
        settings = {name: getattr(origin, name) for name in _SETTINGS}
        super().__init__({"algorithm": origin.name, **settings, "strict": origin.strict, **dict(origin.passthrough)})
        for name in _MAY_BE_OPEN:
            if self[name] is None:
                del self[name]

    @property
    def typed(self) -> AlgorithmConfig:
        """The current settings as an ``AlgorithmConfig``, unchecked."""
        settings: dict[str, Any] = dict.fromkeys(_MAY_BE_OPEN) | {key: self[key] for key in _SETTINGS if key in self}
        passed = {key: value for key, value in self.items() if key not in (*_SETTINGS, "algorithm", "strict")}
        entries = ((key, tuple(value) if isinstance(value, list) else value) for key, value in sorted(passed.items()))
        name, strict = self.get("algorithm", self.origin.name), self.get("strict", False)
        return replace(self.origin, name=name, strict=strict, passthrough=tuple(entries), **settings)

    def __getattr__(self, name: str) -> Any:
        if name in AlgorithmSettings.__slots__ or name.startswith("__"):
            raise AttributeError(name)  # not initialised yet
        return getattr(self.typed, name)


# Fields of an AlgorithmConfig with a key of the same name.
_SETTINGS = (
    *(setting.name for setting in fields(QueueSettings)),
    *("module", "topology", "mapper", "validator", "n_elem", "world_size"),
)
_MAY_BE_OPEN = ("n_elem", "world_size")


def resolve_algorithm_config(cfg: CclConfig, name: str | None = None) -> AlgorithmSettings:
    """Return the settings of algorithm ``name`` as a mapping that a program may change.

    ``name`` and errors are as for ``CclConfig.algorithm``.
    """
    return AlgorithmSettings(cfg.algorithm(name))
