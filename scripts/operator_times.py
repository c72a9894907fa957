"""Measure the operators of PyTorch on the packaged machines in simulated time, and compare two measurements.

    python scripts/operator_times.py --out new.json                   measure every call on every machine
    python scripts/operator_times.py --machines one-cube,edge --operators 'mm*' --jobs 2 --out new.json
    python scripts/operator_times.py --shapes example --out new.json  only the calls of the example models
    python scripts/operator_times.py --resume --out new.json          only the calls that new.json lacks
    python scripts/operator_times.py compare old.json new.json --limit 3

The operators are those of the census (``census_torch.py``). Each has these calls, as far as they apply:

- ``example``: its largest call in the example models, on one cube.
- ``1 token`` and ``512 tokens``: a decoder layer of 8B size in bf16 (width 4096, hidden 14336, 32 heads of 128, 8 heads
  of keys). Only products, norms, softmax, attention and elementwise operators have them. Tensors spread over 16 cubes,
  or over all cubes of a smaller SIP. Attention of one token reads 2048 keys.

Every call runs without data on a machine of its own, and the host waits for each launch (``torch.queue=0``). Its
figures therefore depend on no other call. Refreshes are spread over the banks (``cube.hbm.refresh=spread``): with
refreshes of all banks at once, a call of 1 µs takes up to a third longer if it meets one. The call is made twice, and
the second is measured: the first maps its storages. A row of the JSON file has ``ns``, ``launches`` and ``events``.
``ns`` is the simulated time from the call to its end. A call that fails has ``error`` instead. The file is written
after each call, so an interrupted run loses nothing.

``compare`` lists the calls that became slower than the limit allows, the geometric mean of each machine, and changed
launches. It exits with code 1 if a call is slower than the limit or fails only now. Wrong input is code 2.

``tests/frozen/operator_times.json`` is the measurement to compare a change of the front end with. It has every call on
``one-cube`` and ``default``, the examples on all machines, and ``1 token`` also on ``edge`` and ``ring16``.
``--resume`` adds the missing calls to a file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import kernbench.torch  # noqa: F401 - installs the device "ahbm"
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import InputError, KernbenchError
from kernbench.common.files import parse_json, read_input, writable, write_bytes
from kernbench.common.imports import import_file
from kernbench.engine.engine import GraphEngine
from kernbench.frontends.torch.dispatch import way_of
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.topology.builder import Topology, packaged_machines, resolve_topology

CENSUS = Path(__file__).with_name("census_torch.py")
EXAMPLE, ONE_TOKEN, MANY_TOKENS = "example", "1 token", "512 tokens"
SIZES: Mapping[str, tuple[int, int]] = {ONE_TOKEN: (1, 2048), MANY_TOKENS: (512, 512)}
"""Tokens and keys of a decoder layer, by the shape of its calls."""
WIDTH, HIDDEN, HEADS, KEY_HEADS, HEAD_SIZE = 4096, 14336, 32, 8, 128
LAYER_CUBES = 16
"""Cubes over which tensors of a decoder layer spread, at most."""
LIMIT_PERCENT = 3.0

aten = torch.ops.aten
Rows: TypeAlias = list["Row"]


class Task(NamedTuple):
    """A call to measure on a packaged machine."""

    machine: str
    operator: str
    shape: str


# --- calls ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorForm:
    """The layout of a tensor in its storage; ``storage`` is the number of that storage among those of the call."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int
    storage_elements: int

    def __str__(self) -> str:
        """Return type and shape, with the strides of a tensor that is not contiguous."""
        text = f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"
        contiguous = torch.empty(self.shape, device="meta").stride()
        return text if self.strides == contiguous else f"{text} strides {list(self.strides)}"


@dataclass(frozen=True)
class Call:
    """A call of an operator whose tensors are forms; ``cubes``: tensors spread over at most that many."""

    operator: str
    shape: str
    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    cubes: int = LAYER_CUBES

    @property
    def key(self) -> tuple[str, str]:
        """The operator and the shape, which no two calls share."""
        return self.operator, self.shape

    @property
    def arguments(self) -> str:
        """The arguments as text."""
        named = [f"{name}={_text(argument)}" for name, argument in self.kwargs.items()]
        return ", ".join([*map(_text, self.args), *named])


def _text(argument: object) -> str:
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_text, argument))}]"
    return str(argument)


def with_forms(args: object) -> Any:
    """Replace the tensors in ``args`` by their forms, and the device "meta" by the machine."""
    numbers: dict[int, int] = {}

    def replace(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("ahbm") if leaf.type == "meta" else leaf
        if not isinstance(leaf, torch.Tensor):
            return leaf
        storage = leaf.untyped_storage()
        number = numbers.setdefault(storage._cdata, len(numbers))  # noqa: SLF001 - the identity of a storage
        elements = storage.nbytes() // leaf.element_size()
        return TensorForm(leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.storage_offset(), number, elements)

    return tree_map(replace, args)


def with_tensors(args: object) -> Any:
    """Replace the forms in ``args`` by tensors on the machine; forms of one storage share it."""
    storages: dict[int, Any] = {}

    def replace(leaf: Any) -> Any:
        if not isinstance(leaf, TensorForm):
            return leaf
        if leaf.storage not in storages:
            storages[leaf.storage] = torch.empty(leaf.storage_elements, dtype=leaf.dtype, device="ahbm")
        return storages[leaf.storage].as_strided(leaf.shape, leaf.strides, leaf.offset)

    return tree_map(replace, args)


class ExampleCalls(TorchDispatchMode):  # type: ignore[misc] # PyTorch need not be installed where types are checked
    """The largest call of each operator of PyTorch inside the ``with`` block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, Call] = {}
        self._elements: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Store the call if it is the largest so far, and run it."""
        kwargs = kwargs or {}
        if func.namespace == "aten":
            elements = sum(leaf.numel() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
            if elements > self._elements.get(func, -1):
                self._elements[func] = elements
                forms, named_forms = with_forms((args, kwargs))
                self.calls[func] = Call(operator_name(func), EXAMPLE, func, forms, named_forms, cubes=1)
        return func(*args, **kwargs)


def operator_name(operator: Any) -> str:
    """Return the name of an operator of PyTorch, as in the census."""
    name: str = operator.name()
    return name.removeprefix("aten::")


@cache
def example_calls() -> Mapping[Any, Call]:
    """Return the largest call of each operator of the census, by operator."""
    census = import_file(CENSUS, "the census")
    with ExampleCalls() as examples:
        census.take_census()
    calls: Mapping[Any, Call] = examples.calls
    return calls


@cache
def list_calls() -> Mapping[tuple[str, str], Call]:
    """Return all calls by their keys, the cheapest to simulate first: examples, one token, many tokens."""
    examples = example_calls()
    calls = list(examples.values())
    for shape in SIZES:
        calls += elementwise_calls(examples, shape)
        calls += layer_calls(shape)
    return {call.key: call for call in calls}


def elementwise_calls(examples: Mapping[Any, Call], shape: str) -> Iterator[Call]:
    """Yield a call of each elementwise operator on the hidden elements of a decoder layer.

    It is the example's call. Its tensors become contiguous, and floats become bf16.
    """
    tokens, _ = SIZES[shape]

    def resize(leaf: Any) -> Any:
        if not isinstance(leaf, TensorForm):
            return leaf
        dtype = torch.bfloat16 if leaf.dtype.is_floating_point else leaf.dtype
        return TensorForm(dtype, (tokens, HIDDEN), (HIDDEN, 1), 0, leaf.storage, tokens * HIDDEN)

    for operator, call in examples.items():
        if way_of(operator).kind == "expression":
            args, kwargs = tree_map(resize, (call.args, dict(call.kwargs)))
            yield Call(call.operator, shape, operator, args, kwargs)


def layer_calls(shape: str) -> Iterator[Call]:
    """Yield the products, norms, softmax and attention of a decoder layer, and its rotary positions."""
    tokens, keys = SIZES[shape]

    def call(function: Any, *args: Any, name: str = "", part: str = "", **kwargs: Any) -> Call:
        forms, named_forms = with_forms((args, kwargs))
        label = f"{shape}, {part}" if part else shape
        return Call(name or operator_name(function), label, function, forms, named_forms)

    def tensor(*extents: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.empty(extents, dtype=dtype, device="meta")

    x, weight, square = tensor(tokens, WIDTH), tensor(WIDTH), tensor(WIDTH, WIDTH)
    mean = tensor(tokens, 1, dtype=torch.float32)
    scores = tensor(HEADS, tokens, keys)
    q = tensor(1, tokens, HEADS, HEAD_SIZE).transpose(1, 2)
    k, v = tensor(1, KEY_HEADS, keys, HEAD_SIZE), tensor(1, KEY_HEADS, keys, HEAD_SIZE)
    rows = [WIDTH]

    yield call(aten.mul.Tensor, q, tensor(tokens, HEAD_SIZE), part="rotary")
    yield call(aten.native_layer_norm.default, x, rows, weight, weight, 1e-5)
    yield call(aten.native_layer_norm_backward.default, x, x, rows, mean, mean, weight, weight, [True] * 3)
    yield call(functional.rms_norm, x, rows, weight, name="rms_norm")
    backward = aten._fused_rms_norm_backward.default  # noqa: SLF001 - an operator's name
    yield call(backward, x, x, rows, mean, weight, [True] * 2)
    for packet in ("_softmax", "_log_softmax"):
        yield call(getattr(aten, packet).default, scores, -1, False)
        yield call(getattr(aten, f"{packet}_backward_data").default, scores, scores, -1, torch.bfloat16)
    yield call(aten._safe_softmax.default, scores, -1)  # noqa: SLF001 - an operator's name
    yield call(aten.logsumexp.default, scores, [-1])
    attend = functional.scaled_dot_product_attention
    yield call(
        attend, q, k, v, is_causal=tokens > 1, enable_gqa=True, name="scaled_dot_product_attention", part="attention"
    )
    if tokens > 1:
        yield call(
            attend_and_backpropagate, q, k, v, name="scaled_dot_product_attention", part="attention and its backward"
        )
    group = HEADS // KEY_HEADS if tokens == 1 else HEADS
    batches, queries = (KEY_HEADS, group) if tokens == 1 else (HEADS, tokens)
    yield call(aten.bmm.default, tensor(batches, queries, HEAD_SIZE), tensor(batches, keys, HEAD_SIZE).transpose(1, 2))
    if tokens == 1:
        yield call(aten.mm.default, x, tensor(HIDDEN, WIDTH).t(), part="4096 to 14336")
        yield call(aten.mm.default, tensor(tokens, HIDDEN), tensor(WIDTH, HIDDEN).t(), part="14336 to 4096")
        yield call(aten.mm.default, x, square, part="weights by rows")
    yield call(aten.mm.default, x, square.t(), part="4096 to 4096")
    yield call(aten.addmm.default, weight, x, square.t())


def attend_and_backpropagate(q: Any, k: Any, v: Any) -> None:
    """Compute causal attention and the gradients of its three operands."""
    with torch.enable_grad():
        operands = [operand.detach().requires_grad_() for operand in (q, k, v)]
        result = functional.scaled_dot_product_attention(*operands, is_causal=True, enable_gqa=True)
        torch.autograd.grad(result, operands, torch.empty_like(result))


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The figures of a call on a machine, or its error. The fields are the keys of the JSON file."""

    machine: str
    operator: str
    shape: str
    cubes: int
    arguments: str
    ns: float | None = None
    launches: int | None = None
    events: int | None = None
    error: str | None = None

    @property
    def key(self) -> Task:
        """The machine and the call."""
        return Task(self.machine, self.operator, self.shape)

    @property
    def document(self) -> dict[str, object]:
        """The row in JSON: fields without a value are absent."""
        return {name: field for name, field in vars(self).items() if field is not None}


@cache
def machine_of(name: str) -> Topology:
    """Return a packaged machine with spread refreshes, compiled once in a process."""
    return resolve_topology(name, overrides=["cube.hbm.refresh=spread"])


def measure_call(task: Task) -> tuple[Row, float]:
    """Return the figures of a call on a packaged machine, and the CPU seconds of its simulation."""
    call, topology = list_calls()[task.operator, task.shape], machine_of(task.machine)
    cubes = min(call.cubes, topology.spec.cubes_per_sip)
    engine = GraphEngine(topology, DataPolicy(keep=False, zeros=True))
    began = time.process_time()
    try:
        with ExitStack() as stack:
            settings = frontend_settings([f"torch.cubes={cubes}", "torch.queue=0"])
            context: RuntimeContext[NoParams] = RuntimeContext(engine=engine, frontends=settings)
            stack.enter_context(context)
            stack.enter_context(torch.no_grad())
            args, kwargs = with_tensors((call.args, dict(call.kwargs)))
            context.accelerator.synchronize()
            for _ in range(2):
                begin_ns, begin_events, n_requests = engine.now, engine.n_events, len(context.traces)
                result = call.function(*args, **kwargs)
                context.accelerator.synchronize()
                duration, events = engine.now - begin_ns, engine.n_events - begin_events
                requests = context.traces[n_requests:]
                del result
            del args, kwargs
    except (KernbenchError, RuntimeError, NotImplementedError) as error:
        text = str(error).partition("\n")[0]
        row = Row(*task, cubes, call.arguments, error=f"{type(error).__name__}: {text}")
    else:
        launches = sum(request.phase == "launch" for request in requests)
        row = Row(*task, cubes, call.arguments, round(duration, 3), launches, events)
    return row, time.process_time() - began


def measure_calls(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Row, float]]:
    """Yield the figures of each task, in order; ``jobs`` processes share the tasks."""
    if jobs == 1:
        yield from map(measure_call, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(measure_call, tasks)


def list_tasks(machines: Iterable[str], operators: str, shapes: str) -> list[Task]:
    """Return machine, operator and shape of the calls that match two globs, the cheapest to simulate first."""
    names = list(machines)
    keys = [key for key in list_calls() if fnmatchcase(key[0], operators) and fnmatchcase(key[1], shapes)]
    return [
        Task(machine, *key)
        for shape in (EXAMPLE, *SIZES)
        for machine in names
        for key in keys
        if key[1].partition(",")[0] == shape
    ]


# --- files ------------------------------------------------------------------------------------------------------------


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a JSON file completely or not at all: sorted, a row a line."""
    lines = [json.dumps(row.document) for row in sorted(rows, key=lambda row: row.key)]
    write_bytes(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())


def read_rows(path: Path) -> Rows:
    """Return the rows of a JSON file. Raises InputError for a file that cannot be read."""
    return [Row(**document) for document in parse_json(read_input(path))]


def is_current(row: Row) -> bool:
    """Return True if the call of a row still exists and has the same arguments."""
    call = list_calls().get((row.operator, row.shape))
    return call is not None and call.arguments == row.arguments


# --- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """The figures of one call in two measurements, neither of which failed."""

    before: Row
    after: Row

    @property
    def ratio(self) -> float:
        """Time after by time before: 1 if both are 0, infinity if only the first is 0."""
        before, after = self.before.ns or 0.0, self.after.ns or 0.0
        if before == 0:
            return 1.0 if after == 0 else math.inf
        return after / before

    def __str__(self) -> str:
        """Return the call and its two times."""
        return f"{' | '.join(self.after.key)}: {self.before.ns:,.1f} to {self.after.ns:,.1f} ns, x {self.ratio:.3f}"


@dataclass(frozen=True)
class Comparison:
    """Two measurements, call by call; ``failing`` calls fail only in the second."""

    changes: list[Change]
    failing: list[Row]
    incomparable: list[str]

    @staticmethod
    def of(before: Iterable[Row], after: Iterable[Row]) -> Comparison:
        """Compare the calls that both measurements have with the same arguments."""
        earlier, later = ({row.key: row for row in rows} for rows in (before, after))
        changes: list[Change] = []
        failing: list[Row] = []
        incomparable = [f"{' | '.join(key)}: in one file only" for key in sorted(earlier.keys() ^ later.keys())]
        for key in sorted(earlier.keys() & later.keys()):
            first, second = earlier[key], later[key]
            if (first.arguments, first.cubes) != (second.arguments, second.cubes):
                incomparable.append(f"{' | '.join(key)}: other arguments")
            elif second.error is not None and first.error is None:
                failing.append(second)
            elif first.error is not None:
                incomparable.append(f"{' | '.join(key)}: failed before: {first.error}")
            else:
                changes.append(Change(first, second))
        return Comparison(changes, failing, incomparable)

    def slower_than(self, percent: float) -> list[Change]:
        """Return the calls that are slower by more than ``percent``, the slowest first."""
        slower = [change for change in self.changes if change.ratio > 1 + percent / 100]
        return sorted(slower, key=lambda change: -change.ratio)

    def mean_by_machine(self) -> dict[str, float]:
        """Return the geometric mean of the ratios of each machine, over the calls that take time."""
        logarithms: dict[str, list[float]] = defaultdict(list)
        for change in self.changes:
            if change.before.ns and change.after.ns:
                logarithms[change.after.machine].append(math.log(change.ratio))
        return {machine: math.exp(math.fsum(logs) / len(logs)) for machine, logs in logarithms.items()}

    def report(self, percent: float) -> str:
        """Return the comparison as text."""
        slower = self.slower_than(percent)
        relaunched = [change for change in self.changes if change.before.launches != change.after.launches]
        lines = [
            f"{len(self.changes)} calls compared, {len(slower)} slower by more than {percent:g} %",
            *(f"  {change}" for change in slower),
            "geometric mean of the time after by the time before:",
            *(f"  {machine}: {mean:.4f}" for machine, mean in self.mean_by_machine().items()),
            f"{len(relaunched)} calls with other launches",
            *(
                f"  {' | '.join(change.after.key)}: {change.before.launches} to {change.after.launches}"
                for change in relaunched
            ),
            f"{len(self.failing)} calls fail only now",
            *(f"  {' | '.join(row.key)}: {row.error}" for row in self.failing),
            f"{len(self.incomparable)} calls not compared",
            *(f"  {line}" for line in self.incomparable),
        ]
        return "\n".join(lines)


# --- the command ------------------------------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default=",".join(packaged_machines()), help="packaged machines, with commas")
    parser.add_argument("--operators", default="*", metavar="GLOB", help="names of operators, as in the census")
    parser.add_argument("--shapes", default="*", metavar="GLOB", help="'example', '1 token*', '512 tokens*'")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that simulate side by side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file to write")
    parser.add_argument("--resume", action="store_true", help="keep the rows of FILE, and measure the missing ones")
    commands = parser.add_subparsers(dest="command", metavar="compare")
    compare = commands.add_parser("compare", help="compare two measurements")
    compare.add_argument("before", type=Path, metavar="A")
    compare.add_argument("after", type=Path, metavar="B")
    compare.add_argument("--limit", type=float, default=LIMIT_PERCENT, metavar="PERCENT", help="slower at most (3)")
    options = parser.parse_args(arguments)
    if options.command is None and options.out is None:
        parser.error("name the file to write: --out FILE")
    return options


def compare_files(before: Path, after: Path, percent: float) -> int:
    """Print the comparison of two files; return 1 if a call is slower by more than ``percent`` or fails only now."""
    comparison = Comparison.of(read_rows(before), read_rows(after))
    print(comparison.report(percent))
    return int(bool(comparison.slower_than(percent) or comparison.failing))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the file, or compare two files; return the exit code."""
    options = parse_arguments(arguments)
    if options.command == "compare":
        return compare_files(options.before, options.after, options.limit)
    out = writable(options.out)
    rows = [row for row in read_rows(out) if is_current(row)] if options.resume and out.exists() else []
    present = {row.key for row in rows}
    machines = options.machines.split(",")
    for machine in machines:
        machine_of(machine)
    tasks = [task for task in list_tasks(machines, options.operators, options.shapes) if task not in present]
    if not tasks and not rows:
        sys.exit(f"no call matches --operators {options.operators!r} --shapes {options.shapes!r}")
    for row, cpu_s in measure_calls(tasks, options.jobs):
        rows.append(row)
        write_rows(out, rows)
        outcome = row.error or f"{row.ns:,.1f} ns, {row.launches} launches, {row.events:,} events"
        print(f"{' | '.join(row.key)}: {outcome} ({cpu_s:.1f} CPU s)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
