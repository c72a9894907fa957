"""How an algorithm and its queues are configured, as typed values; ``ccl_yaml`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kernbench.common.complaints import one_of, show
from kernbench.common.errors import InputError, Problem, UnknownNameError
from kernbench.common.imports import F, named_function
from kernbench.messages.queues import Backpressure, BufferKind
from kernbench.messages.steps import REDUCE_OPS, ReduceName
from kernbench.policy.address.allocator import ALIGNMENT_BYTES

Scalar: TypeAlias = int | float | str | bool
Passed: TypeAlias = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What all queues of an installation have in common."""

    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    poll_ns: float = 50.0
    n_slots: int = 4
    slot_size: int = 4096
    ipcq_credit_size_bytes: int = 16

    @property
    def ring_stride(self) -> int:
        """Bytes from one ring of a PE to the next: its slots, rounded up to what memory aligns to."""
        return -(-self.n_slots * self.slot_size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig(QueueSettings):
    """An algorithm with everything that applies to it, its queues too.

    ``module``, ``topology``, ``mapper``, ``validator``: built-in names, or paths from ``folder``. ``world_size`` None:
    as many ranks as SIPs; ``ranks_are_pes``: PEs even then. ``passthrough``: what its ``kernel_args`` gets beside
    ``n_elem``, by name. ``strict``: an all-reduce that it does not do is an error. ``place``, ``passed_at``: where it
    and each of ``passthrough`` stand, for errors.
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
        """What errors call it."""
        return f"{self.place}: algorithm {self.name!r}" if self.place else f"algorithm {self.name!r}"

    def named(self, kind: str, text: str, builtins: Mapping[str, F]) -> F:
        """The function that ``text`` means as its ``kind``, for example ``mapper``; raises as ``named_function``."""
        return named_function(kind, text, builtins, f"{self.label}: {kind} {text!r}", self.folder)

    @property
    def passed(self) -> str:
        """What passes through, as errors of the algorithm show it."""
        places = dict(self.passed_at)
        given = ((key, show(value), places.get(key)) for key, value in self.passthrough)
        return ", ".join(f"{key}={value}" + (f" ({at.source}:{at.line})" if at else "") for key, value, at in given)

    @property
    def reduce_op(self) -> ReduceName:
        """How it reduces unless a call says otherwise."""
        return next((op for op in REDUCE_OPS if ("reduce_op", op) in self.passthrough), "sum")


@dataclass(frozen=True, slots=True)
class CclConfig:
    """A ``ccl.yaml``: its algorithms in the order of the file, and the one to take when none is named."""

    source: str
    default_algorithm: str | None
    algorithms: tuple[AlgorithmConfig, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The algorithms by name."""
        return tuple(each.name for each in self.algorithms)


def resolve_algorithm_config(cfg: CclConfig, name: str | None = None) -> AlgorithmConfig:
    """The algorithm called ``name``, else the default one, else the only one. UnknownNameError lists what there is."""
    wanted = name or cfg.default_algorithm
    if wanted is None:
        if len(cfg.algorithms) > 1:
            raise InputError(f"{cfg.source} has no defaults.algorithm; name one of its algorithms: {one_of(cfg.names)}")
        return cfg.algorithms[0]
    found = next((each for each in cfg.algorithms if each.name == wanted), None)
    if found is None:
        raise UnknownNameError("algorithm", wanted, cfg.names, f"they are in {cfg.source}")
    return found
