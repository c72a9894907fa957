"""Scheduled kernels: the steps of a PE, and their commands, computed once for each run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import sub
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeAlias

from kernbench.common.dtypes import F32, I32, DType
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError
from kernbench.messages.steps import ChunkSource, ReduceName, Step


class Op(NamedTuple):
    """One command of a schedule: step number ``line``, or a part of the step.

    Values are numbered: ``to`` is the value that the command produces, ``reads`` are its operands, and ``drops`` are
    the values that no later command uses. ``label`` is the direction of a send or receive, the operator, or the tensor.
    ``at`` is the index of a load or store in the PE's accesses. ``number`` is a further scalar operand.
    """

    does: str
    line: int
    to: int
    reads: tuple[int, ...]
    label: Any
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    at: int
    number: float | None
    drops: tuple[int, ...]


Over: TypeAlias = Literal["ranks", "cubes", "sips"]
"""The PEs that have data without a table of shards: every PE; PE 0 of every cube; PE 0 of cube 0"""
_PLACE = ("rank", "cube", "pe")


class ShardPart(NamedTuple):
    """The part of the tensors that a PE owns: ``n_elem`` elements, from byte offset ``bases[i]`` of tensor i on.

    Consecutive blocks begin ``stride`` elements apart.
    """

    bases: tuple[int, ...]
    n_elem: int
    stride: int


class PlayerId(NamedTuple):
    """The place of a PE in a schedule: rank, cube and PE, and the number ``local`` of that PE in its SIP."""

    rank: int
    cube: int
    pe: int
    local: int


_ANYWHERE = PlayerId(0, 0, 0, 0)


class ScheduledKernel:
    """``schedule(*, rank, world_size, n_elem, …)`` as a ``kernel(*pointers, *args, tl)`` of ``tensors`` tensors.

    The schedule receives the values of ``args`` that are among its parameters, or all of them if it has ``**config``.
    It receives ``cube`` and ``pe`` if it has these parameters. A launch issues the commands of the schedule directly; a
    call with a ``tl`` issues them as ``tl`` calls. ``keys`` are the keys of the schedule's configuration. ``alike``
    means that the steps do not depend on the rank, so that they are computed once for all ranks.
    """

    def __init__(
        self, schedule: Callable[..., Sequence[Step]], *, over: Over = "ranks", tensors: int = 1, alike: bool = False
    ) -> None:
        self.schedule = schedule
        self.name = type(schedule).__name__
        if isinstance(schedule, FunctionType):
            self.name = Path(schedule.__code__.co_filename).stem
        self.tensors = tensors
        self._over = over
        self._alike = alike
        parameters = inspect.signature(schedule).parameters.values()
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._wanted = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        configurable = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.name in self._wanted and parameter.name not in _PLACE
        }
        built_in = {"n_elem": 0, "world_size": 1, "dtype": "f32", "ranks_are_sips": over != "ranks", "shards": None}
        self._defaults = built_in | {
            name: default for name, default in configurable.items() if default is not inspect.Parameter.empty
        }
        self._names = tuple(dict.fromkeys([*built_in, *configurable]))
        self.keys = tuple(configurable)

    def args(self, *, n_elem: int, world_size: int, **config: Any) -> tuple[Any, ...]:
        """Return the arguments of the kernel after its pointers; ``dtype`` defaults to f32.

        Raises InputError for missing arguments and for those that the schedule rejects.
        """
        arguments = self._defaults | config | {"n_elem": n_elem, "world_size": world_size}
        missing = [name for name in self._names if name not in arguments]
        if missing:
            raise InputError(f"the schedule {self.schedule.__qualname__} needs {', '.join(missing)}")
        arguments["dtype"] = element_type(arguments["dtype"]).name
        values = {name: arguments.pop(name) for name in self._names}
        further = arguments if self._takes_all else {}
        # A first run of the schedule raises the errors of the configuration here.
        self.steps(
            values | further,
            PlayerId(config.get("sip_rank", 0), 0, 0, 0),
            ShardPart((0,) * self.tensors, n_elem, n_elem),
        )
        return (*values.values(), tuple(further), *further.values())

    def kernel_args(self, *, n_elem: int, world_size: int, dtype: object = "f16", **config: Any) -> tuple[Any, ...]:
        """Return ``args`` for programs that launch a shipped kernel themselves; ``dtype`` defaults to f16."""
        return self.args(n_elem=n_elem, world_size=world_size, dtype=dtype, **config)

    def steps(self, values: Mapping[str, Any], place: PlayerId, share: ShardPart) -> Sequence[Step]:
        """Return the steps of a PE for its ``share``."""
        arguments = dict(values) | {"n_elem": share.n_elem, "stride": share.stride}
        arguments |= {"rank": place.rank, "cube": place.cube, "pe": place.pe}
        if self._takes_all:
            return self.schedule(**arguments)
        return self.schedule(**{name: arguments[name] for name in self._wanted if name in arguments})

    def bind_args(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the ``args`` of a launch by name."""
        n_names = len(self._names)
        names = (*self._names, *args[n_names])  # then the further names of this launch
        return dict(zip(names, (*args[:n_names], *args[n_names + 1 :]), strict=True))

    def place(self, values: Mapping[str, Any], ids: tuple[int, int, int], counts: tuple[int, int, int]) -> PlayerId:
        """Return the place of PE ``ids`` (PE, cube, SIP) among ``counts`` participants."""
        pe, cube, sip = ids
        local = cube * counts[0] + pe
        rank = sip if values["ranks_are_sips"] else sip * counts[0] * counts[1] + local
        return PlayerId(rank, cube, pe, local)

    def shares(self, values: Mapping[str, Any], place: PlayerId) -> Iterator[ShardPart]:
        """Yield the shares of a PE: its lines of ``shards``, or the default of ``Over``.

        A line has cube, PE, offset in bytes and number of elements. With two tensors it also has the offset in the
        second tensor, and the bytes from block to block.
        """
        table, n_elem = values["shards"], values["n_elem"]
        item = element_type(values["dtype"]).itemsize
        width = 2 + 2 * self.tensors
        for at in range(0, len(table or ()), width):
            line = table[at : at + width]
            if line[:2] == (place.cube, place.pe):
                yield ShardPart((line[2], *line[4:5]), line[3], line[5] // item if self.tensors > 1 else line[3])
        if table is None:
            numbers = {"ranks": place.local, "cubes": place.cube if place.pe == 0 else None}
            number = numbers.get(self._over, None if place.cube or place.pe else 0)
            if number is not None:
                yield ShardPart((number * n_elem * item,) * self.tensors, n_elem, n_elem)

    def ops(self, args: Sequence[Any], ids: tuple[int, int, int], counts: tuple[int, int, int]) -> list[Op]:
        """Return all commands of a PE."""
        return self.ops_from((0,) * self.tensors, args, ids, counts)[0]

    def ops_from(
        self, pointers: Sequence[Any], args: Sequence[Any], ids: tuple[int, int, int], counts: tuple[int, int, int]
    ) -> tuple[list[Op], list[Any]]:
        """Return all commands of a PE and the addresses of their accesses.

        The addresses are relative to ``pointers``; None stands for accesses without a pointer.
        """
        values = self.bind_args(args)
        place = self.place(values, ids, counts)
        shares = tuple(self.shares(values, place))
        if not shares:
            return [], []
        origin = shares[0].bases
        shares = tuple([share._replace(bases=tuple(map(sub, share.bases, origin))) for share in shares])
        try:
            ops, accesses = _ops_at(self, tuple(args), _ANYWHERE if self._alike else place, shares)
        except InputError as error:
            raise InputError(f"rank {place.rank}, {error}") from None
        starts = [at if at is None else at + base for at, base in zip(pointers, origin, strict=True)]
        return ops, [None if (start := starts[tensor]) is None else start + offset for tensor, offset in accesses]

    def __call__(self, *args: Any, tl: Any) -> None:
        """Execute the schedule as calls of ``tl``."""
        pointers, further = args[: self.tensors], args[self.tensors :]
        ids = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        counts = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
        ops, places = self.ops_from(pointers, further, ids, counts)
        values: dict[int, Any] = {}
        for op in ops:
            _play(op, places, values, tl)
            for value in op.drops:
                del values[value]


def _play(op: Op, places: Sequence[Any], values: dict[int, Any], tl: Any) -> None:
    match op.does:
        case "load":
            values[op.to] = tl.load(places[op.at], op.shape, op.dtype)
        case "store":
            tl.store(places[op.at], values[op.reads[0]])
        case "send":
            tl.send(op.label, values[op.reads[0]])
        case "receive":
            values[op.to] = tl.recv_async(op.label, op.shape, op.dtype)
        case "await":
            values[op.to] = tl.recv(op.label, op.shape, op.dtype)
        case "zeros":
            values[op.to] = tl.zeros(op.shape, op.dtype)
        case "cast":
            values[op.to] = tl.cast(values[op.reads[0]], op.dtype)
        case "copy":
            values[op.to] = tl.copy(values[op.reads[0]])
        case "div":
            values[op.to] = values[op.reads[0]] / op.number
        case name:
            values[op.to] = tl.elementwise(name, *(values[i] for i in op.reads))


@lru_cache(maxsize=8)
def _ops_at(
    kernel: ScheduledKernel, args: tuple[Any, ...], place: PlayerId, shares: tuple[ShardPart, ...]
) -> tuple[list[Op], list[tuple[int, int]]]:
    """Return the commands at ``place`` for ``shares``, and their accesses.

    An access is (tensor, bytes from the beginning of the first share).
    """
    values = kernel.bind_args(args)
    item = element_type(values["dtype"]).itemsize
    alike: list[_ComparableSteps] = []
    accesses: list[tuple[int, int]] = []
    for share in shares:
        steps = kernel.steps(values, place, share)
        chunks = [step.chunk for step in steps if step.chunk is not None]
        accesses += [(chunk.tensor, share.bases[chunk.tensor] + chunk.offset * item) for chunk in chunks]
        alike.append(_ComparableSteps(steps))
    return _ops_of(tuple(alike), values["dtype"]), accesses


class _ComparableSteps:
    """``steps`` for comparison: equal to steps with the same commands, wherever the chunks of either begin."""

    __slots__ = ("_key", "steps")

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self._key = tuple([step if step.chunk is None else (step[:3], step.chunk[1:]) for step in steps])

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ComparableSteps) and self._key == other._key


@lru_cache(maxsize=8)
def _ops_of(shares: tuple[_ComparableSteps, ...], dtype: str) -> list[Op]:
    """Return the commands for the steps of ``shares``; PEs with equal steps share one result."""
    ops = _Ops(element_type(dtype))
    for share in shares:
        ops.add(share.steps)
    return ops.finish()


_OPERATORS: dict[ReduceName, str] = {
    "sum": "add",
    "avg": "add",
    "max": "maximum",
    "min": "minimum",
    "product": "mul",
    "band": "and",
    "bor": "or",
    "bxor": "xor",
}


class _Ops:
    """Collector of the commands of steps; each array that a step writes is a new value with a number."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._ops: list[tuple[Any, ...]] = []  # the fields of an Op without drops
        self._last: list[int] = []  # by value: the last command that uses or produces it
        self._counts: list[int] = []
        self._named: dict[Hashable, int] = {}
        self._accesses = 0

    def add(self, steps: Sequence[Step]) -> None:
        """Append the commands of ``steps``."""
        self._named = {}
        for line, step in enumerate(steps, 1):
            does, chunk = step.does, step.chunk
            try:
                if does == "send":
                    self._take("send", line, self._value(step.source), step.to)
                elif does in {"receive", "await"}:
                    self._named[step.to] = self._make(does, line, (), step.number, step.to)
                elif does == "reduce":
                    self._named[step.to] = self._reduce(step, line)
                elif chunk is not None:
                    place = chunk.tensor, self._accesses
                    self._accesses += 1
                    if does == "load":
                        self._named[step.to] = self._make("load", line, (), chunk.size, *place)
                    else:
                        self._take("store", line, self._store(step.source, chunk.size), *place)
                elif does == "copy":
                    value = self._value(step.source)
                    self._named[step.to] = self._make("copy", line, (value,), self._counts[value])
                elif does == "scale":
                    self._named[step.to] = self._scale(self._value(step.source), step.number, line)
                else:
                    self._named[step.to] = self._make("zeros", line, (), step.number)
            except InputError as error:
                raise InputError(f"step {line} ({describe(step)}): {error}") from None

    def finish(self) -> list[Op]:
        """Return all commands, each with the values that have no further use."""
        drops: list[list[int]] = [[] for _ in self._ops]
        for value, at in enumerate(self._last):
            drops[at].append(value)
        return [tuple.__new__(Op, (*op, tuple(dropped))) for op, dropped in zip(self._ops, drops, strict=True)]

    def _value(self, source: ChunkSource) -> int:
        value = self._named.get(source)
        if value is None:
            problem = f"no message of {source} has been received" if isinstance(source, str) else f"buffer {source} is"
            raise InputError(problem if isinstance(source, str) else f"{problem} used before it is written")
        return value

    def _store(self, source: ChunkSource, count: int) -> int:
        value = self._value(source)
        if self._counts[value] != count:
            raise InputError(f"the chunk has {count} elements, the stored value {self._counts[value]}")
        return value

    def _take(self, does: str, line: int, value: int, label: Any, at: int = 0) -> None:
        """Append a command that uses ``value`` in the kernel's type and produces nothing."""
        count = self._counts[value]
        self._last[value] = len(self._ops)
        nbytes = count * self._dtype.itemsize
        self._ops.append((does, line, -1, (value,), label, (count,), self._dtype, nbytes, at, None))

    def _reduce(self, step: Step, line: int) -> int:
        a, b = self._value(step.source), self._value(step.other)
        if self._counts[a] != self._counts[b]:
            raise InputError(f"its operands have {self._counts[a]} and {self._counts[b]} elements")
        return self._make(_OPERATORS[step.op], line, (a, b), self._counts[a])

    def _scale(self, value: int, contributions: int, line: int) -> int:
        """Divide by the number of contributions, in a wider type that can represent that number."""
        if contributions == 1:
            return value
        narrow, wide = self._dtype, F32 if self._dtype.is_float else I32
        value = self._cast(value, narrow, wide, line)
        number = float(contributions) if wide is F32 else contributions
        value = self._make("div", line, (value,), self._counts[value], number=number, dtype=wide)
        return self._cast(value, wide, narrow, line)

    def _cast(self, value: int, source: DType, target: DType, line: int) -> int:
        return value if source is target else self._make("cast", line, (value,), self._counts[value], dtype=target)

    def _make(
        self,
        does: str,
        line: int,
        reads: tuple[int, ...],
        count: int,
        label: Any = None,
        at: int = 0,
        number: float | None = None,
        dtype: DType | None = None,
    ) -> int:
        to, here = len(self._last), len(self._ops)
        self._last.append(here)
        self._counts.append(count)
        for value in reads:
            self._last[value] = here
        kind = dtype or self._dtype
        self._ops.append((does, line, to, reads, label, (count,), kind, count * kind.itemsize, at, number))
        return to


def describe(step: Step) -> str:
    """Return the text of a step, such as ``send E``."""
    return f"{step.does} {step.to}" if isinstance(step.to, str) else step.does


_WORDS = {"cast": "scale", "div": "scale", "zeros": "zero"}
_MOVES = ("load", "store", "send", "receive", "await", "copy")


def text_of_step(op: Op) -> str:
    """Return the text of a step, such as ``send E, 64 f16``, from its first command ``op``."""
    return f"{_say(op)}, {op.shape[0]} {op.dtype}"


def _say(op: Op) -> str:
    if op.does in _MOVES:
        return f"{op.does} {op.label}" if isinstance(op.label, str) else op.does
    return _WORDS.get(op.does, f"reduce ({op.does})")
