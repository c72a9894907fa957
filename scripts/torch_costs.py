"""Measure PyTorch on the packaged machine: the tables of products, attention and compiled programs in docs/pytorch.md.

    python scripts/torch_costs.py                               # prints all tables
    python scripts/torch_costs.py --write                       # puts them into the page
    python scripts/torch_costs.py --table products --only 'linear*'   # only some rows

Runs have no data. Times are in simulated ns, of second calls with spread refresh. Products are timed at their first
call, with refresh of all banks. The lower bound of a product is the time of the matrix units for all multiplications,
or of the memories for the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

import kernbench.torch  # noqa: F401 - installs the device "ahbm"
from kernbench.common.files import write_bytes
from kernbench.common.imports import import_file
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.topology.builder import resolve_topology

PAGE = Path(__file__).parents[1] / "docs" / "pytorch.md"
MODELS = PAGE.parents[1] / "examples" / "pytorch" / "models.py"
AHBM = "ahbm"
Context: TypeAlias = RuntimeContext[NoParams]
Step: TypeAlias = Callable[[], object]
INT8_MM, INT4_MM, PACK_INT4 = (
    getattr(torch.ops.aten, f"_{name}")
    for name in ("weight_int8pack_mm", "weight_int4pack_mm", "convert_weight_to_int4pack")
)
Compile: TypeAlias = Callable[[Any], Any]


@contextmanager
def machine(*changes: str, cubes: int = 1, pes: int = 8) -> Iterator[Context]:
    """Run the block on PEs of the packaged machine with ``changes``, without data and without a queue of launches."""
    settings = frontend_settings([f"torch.cubes={cubes}", f"torch.pes={pes}", "torch.queue=0"])
    engine = GraphEngine(resolve_topology("default", changes), enable_data=False)
    with RuntimeContext(engine, params=NoParams(), frontends=settings) as context:
        yield context


class Cost(NamedTuple):
    """The launches and the time of a call."""

    launches: int
    ns: float


def measure(context: Context, step: Step, prepare: Step | None = None) -> Cost:
    """Return the cost of the second call of ``step``; ``prepare`` comes before each call, and is not counted."""
    costs = []
    for _ in range(2):
        if prepare is not None:
            prepare()
        before, begin_ns = _count_launches(context), context.engine.now
        step()
        costs.append(Cost(_count_launches(context) - before, context.engine.now - begin_ns))
    return costs[-1]


def _count_launches(context: Context) -> int:
    context.drain()
    return sum(use.launches for use in context.operators.uses())


class Row(Protocol):
    """A row of a table."""

    @property
    def label(self) -> str:
        """The first cell."""

    def cells(self) -> Iterator[str]:
        """Yield the measured cells."""


@dataclass(frozen=True)
class Product:
    """A product of shape (m, k, n) in f16, ``linear`` or ``x @ w``, on a number of cubes and PEs."""

    label: str
    shape: tuple[int, int, int]
    cubes: int = 1
    pes: int = 8
    is_linear: bool = True

    def cells(self) -> Iterator[str]:
        """Yield the duration, its lower bound and their ratio."""
        m, k, n = self.shape
        with machine(cubes=self.cubes, pes=self.pes) as context:
            x = torch.empty(m, k, dtype=torch.float16, device=AHBM)
            w = torch.empty(*((n, k) if self.is_linear else (k, n)), dtype=torch.float16, device=AHBM)
            multiply: Callable[[Tensor, Tensor], Tensor] = functional.linear if self.is_linear else torch.matmul
            with torch.no_grad():
                multiply(x, w)
            duration_ns = sum(trace.total_ns for trace in context.traces if trace.pe_exec_ns)
            spec = context.topology
        n_pes = self.cubes * self.pes
        compute_ns = m * k * n / spec.pe.gemm.macs_per_ns["f16"] / n_pes
        read_ns = 2 * k * n / (n_pes * spec.cube.slice_bw_gbs)
        bound_ns, bound = (compute_ns, "matrix units") if compute_ns > read_ns else (read_ns, "memory")
        yield f"{duration_ns:,.0f}"
        yield f"{bound_ns:,.0f}: {bound}"
        yield f"{duration_ns / bound_ns:.2f}"


@dataclass(frozen=True)
class IntegerWeights:
    """Products of ``rows`` rows with 4096 × 2048 weights in bf16, in int8, and in 4 bits by groups."""

    rows: int

    @property
    def label(self) -> str:
        """The number of rows."""
        return str(self.rows)

    def cells(self) -> Iterator[str]:
        """Yield the time of each type of weights."""
        by_int4 = (partial(self._by_int4, group) for group in (128, 64, 32))
        products: tuple[Callable[[Tensor], Step], ...] = (self._by_bf16, self._by_int8, *by_int4)
        for multiply in products:
            with torch.no_grad(), machine("cube.hbm.refresh=spread") as context:
                x = torch.empty(self.rows, 4096, dtype=torch.bfloat16, device=AHBM)
                yield f"{measure(context, multiply(x)).ns:,.0f}"

    @staticmethod
    def _by_bf16(x: Tensor) -> Step:
        return partial(functional.linear, x, torch.empty(2048, 4096, dtype=torch.bfloat16, device=AHBM))

    @staticmethod
    def _by_int8(x: Tensor) -> Step:
        weights = torch.empty(2048, 4096, dtype=torch.int8, device=AHBM)
        scales = torch.empty(2048, dtype=torch.bfloat16, device=AHBM)
        return partial(INT8_MM, x, weights, scales)

    @staticmethod
    def _by_int4(group: int, x: Tensor) -> Step:
        bytes_of_pairs = torch.empty(2048, 4096 // 2, dtype=torch.uint8, device=AHBM)
        weights = PACK_INT4(bytes_of_pairs, 8)
        scales = torch.empty(4096 // group, 2048, 2, dtype=torch.bfloat16, device=AHBM)
        return partial(INT4_MM, x, weights, group, scales)


@dataclass(frozen=True)
class Attention:
    """Causal attention of operands of the ``shape`` batch × heads × tokens × size, on a number of cubes."""

    label: str
    shape: tuple[int, int, int, int]
    kv_heads: int = 0
    dtype: torch.dtype = torch.bfloat16
    cubes: int = 1

    def cells(self) -> Iterator[str]:
        """Yield the times of forward, of backward, and of both by ``@`` and ``softmax``."""
        with machine("cube.hbm.refresh=spread", cubes=self.cubes) as context:
            operands = self._make_operands()
            attend = partial(functional.scaled_dot_product_attention, *operands, is_causal=True, enable_gqa=True)
            with torch.no_grad():
                yield f"{measure(context, attend).ns:,.0f}"
            results: list[Tensor] = []
            gradient = torch.empty_like(operands[0], requires_grad=False)

            def differentiate() -> None:
                torch.autograd.grad(results.pop(), operands, gradient)

            def train_by_operators() -> None:
                torch.autograd.grad(_attend_by_operators(*operands), operands, gradient)

            yield f"{measure(context, differentiate, lambda: results.append(attend())).ns:,.0f}"
            yield f"{measure(context, train_by_operators).ns:,.0f}"

    def _make_operands(self) -> list[Tensor]:
        batch, heads, tokens, size = self.shape
        counts = (heads, self.kv_heads or heads, self.kv_heads or heads)
        shapes = [(batch, n, tokens, size) for n in counts]
        return [torch.empty(shape, dtype=self.dtype, device=AHBM, requires_grad=True) for shape in shapes]


def _attend_by_operators(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    shared = queries.shape[1] // keys.shape[1]
    if shared > 1:
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    scores = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
    tokens = queries.shape[2]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=queries.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values


@dataclass(frozen=True)
class Compiled:
    """A program, eager and compiled. ``make`` returns its step; the argument compiles a function, or returns it."""

    label: str
    make: Callable[[Compile], Step]

    def cells(self) -> Iterator[str]:
        """Yield the launches, and the times, eager and compiled."""
        with machine("cube.hbm.refresh=spread") as context:
            eager, compiled = (measure(context, self.make(compile_it)) for compile_it in (_keep, torch.compile))
        yield f"{eager.launches} → {compiled.launches}"
        yield f"{eager.ns:,.0f} → {compiled.ns:,.0f}"


def _keep(program: Any) -> Any:
    return program


def _chain(compile_it: Compile) -> Step:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(torch.relu(x * y + 1.0) * x - y) * 2

    x, y = (torch.empty(64, 1024, device=AHBM) for _ in range(2))
    return partial(compile_it(chain), x, y)


def _normalise(dtype: torch.dtype, compile_it: Compile) -> Step:
    def normalise(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    x, weight = torch.empty(64, 1024, dtype=dtype, device=AHBM), torch.empty(1024, dtype=dtype, device=AHBM)
    return _without_gradients(partial(compile_it(normalise), x, weight))


def _run_layer(compile_it: Compile) -> Step:
    layer = _load_models().DecoderLayer(256, 8, 2, 704, 0).bfloat16().to(AHBM)
    x, angles = torch.empty(1, 16, 256, dtype=torch.bfloat16, device=AHBM), _list_angles(0, 16, 16)
    return _without_gradients(partial(compile_it(layer), x, angles, None))


def _decode(compile_it: Compile) -> Step:
    layer = _load_models().StaticDecoderLayer(512, 8, 2, 1408).bfloat16().to(AHBM)
    x = torch.empty(1, 1, 512, dtype=torch.bfloat16, device=AHBM)
    cache = [torch.empty(1, 2, 64, 64, dtype=torch.bfloat16, device=AHBM) for _ in range(2)]
    position, mask = torch.tensor([63]).to(AHBM), torch.ones(1, 1, 1, 64, dtype=torch.bool).to(AHBM)
    return _without_gradients(partial(compile_it(layer), x, _list_angles(63, 1, 32), *cache, position, mask))


def _train_layer(compile_it: Compile) -> Step:
    layer = _load_models().DecoderLayer(128, 4, 2, 352, 0).to(AHBM)
    x, angles = torch.empty(2, 16, 128, device=AHBM), _list_angles(0, 16, 16)

    def compute_loss(x: Tensor) -> Tensor:
        loss: Tensor = layer(x, angles, None).pow(2).mean()
        return loss

    loss_of = compile_it(compute_loss)

    def train() -> None:
        layer.zero_grad(set_to_none=True)
        loss_of(x).backward()

    return train


def _without_gradients(step: Step) -> Step:
    without: Step = torch.no_grad()(step)
    return without


def _load_models() -> ModuleType:
    return import_file(MODELS, "the example models")


def _list_angles(first: int, count: int, size: int) -> Tensor:
    angles = torch.arange(first, first + count)[:, None] * 10000.0 ** (-torch.arange(size) / size)
    return angles.to(AHBM)


class Table(NamedTuple):
    """A table of the page between the comments ``<!-- costs of NAME -->`` and ``<!-- end of costs of NAME -->``."""

    name: str
    head: tuple[str, ...]
    rows: Sequence[Row]

    def measure(self, pattern: str = "*") -> str:
        """Return the table with the rows whose label the pattern matches."""
        rows = [row for row in self.rows if fnmatchcase(row.label, pattern)]
        lines = [self.head, ("---",) * len(self.head), *((row.label, *row.cells()) for row in rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def put_into(self, page: str) -> str:
        """Return the page with the table measured anew."""
        begin, end = f"<!-- costs of {self.name} -->", f"<!-- end of costs of {self.name} -->"
        if not 0 <= page.find(begin) < page.find(end):
            raise SystemExit(f"{PAGE}: no {begin} before {end}")
        before, _, behind = page.partition(begin)
        return f"{before}{begin}\n\n{self.measure()}\n\n{end}{behind.partition(end)[2]}"


TABLES = (
    Table(
        "products",
        ("operation", "duration", "lower bound", "ratio"),
        (
            Product("`torch.mm` 512³ on one PE (`torch.pes=1`)", (512, 512, 512), pes=1, is_linear=False),
            Product("`torch.mm` 1024³, eight PEs of a cube", (1024, 1024, 1024), is_linear=False),
            Product("`torch.mm` 512 × 4096 × 4096, the same PEs", (512, 4096, 4096), is_linear=False),
            Product("linear layer 4096 → 14336, one row, 128 PEs (`torch.cubes=16`)", (1, 4096, 14336), 16),
            Product("the same as `x @ w`, `w` (4096, 14336) stored by rows", (1, 4096, 14336), 16, is_linear=False),
            Product("linear layer 4096 → 14336, 64 rows, 128 PEs", (64, 4096, 14336), 16),
            Product("linear layer 4096 → 4096, 512 rows, 128 PEs", (512, 4096, 4096), 16),
            Product("the same as `x @ w`, `w` (4096, 4096) stored by rows", (512, 4096, 4096), 16, is_linear=False),
            Product("linear layer 2048 → 2048, 2048 rows, 128 PEs", (2048, 2048, 2048), 16),
            Product("linear layer 4096 → 4096, 512 rows, 32 PEs (`torch.cubes=4`)", (512, 4096, 4096), 4),
            Product("linear layer 2048 → 2048, 128 rows, 32 PEs", (128, 2048, 2048), 4),
        ),
    ),
    Table(
        "integer weights",
        ("rows", "bf16", "int8", "4 bits, groups of 128", "of 64", "of 32"),
        (IntegerWeights(1), IntegerWeights(8)),
    ),
    Table(
        "attention",
        ("causal attention, bf16", "forward, ns", "backward, ns", "both, by `@` and `softmax`"),
        (
            Attention("4 heads of 32 × 16, batch 4, f32, 8 PEs", (4, 4, 32, 16), dtype=torch.float32),
            Attention("12 heads of 256 × 64, 8 PEs", (1, 12, 256, 64)),
            Attention("12 heads of 512 × 64, 8 PEs", (1, 12, 512, 64)),
            Attention("32 heads that share 8, 256 × 128, 32 PEs", (1, 32, 256, 128), kv_heads=8, cubes=4),
            Attention("12 heads of 1,024 × 64, batch 2, 32 PEs", (2, 12, 1024, 64), cubes=4),
        ),
    ),
    Table(
        "compiled programs",
        ("program", "launches", "simulated ns"),
        (
            Compiled("7 elementwise operators, 64 × 1024, f32", _chain),
            Compiled("RMS norm by hand, 64 × 1024, f32", partial(_normalise, torch.float32)),
            Compiled("the same in bf16", partial(_normalise, torch.bfloat16)),
            Compiled("Llama layer, 16 tokens, bf16", _run_layer),
            Compiled("decode with a static cache, bf16", _decode),
            Compiled("Llama layer, forward and backward", _train_layer),
        ),
    ),
)


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put complete tables into docs/pytorch.md")
    parser.add_argument("--table", default="*", help="names of the tables to measure, as a pattern")
    parser.add_argument("--only", default="*", help="labels of the rows to measure, as a pattern")
    options = parser.parse_args()
    named = [table for table in TABLES if fnmatchcase(table.name, options.table)]
    if not named:
        parser.error(f"--table {options.table!r} is no name's pattern; names: {', '.join(t.name for t in TABLES)}")
    tables = [table for table in named if any(fnmatchcase(row.label, options.only) for row in table.rows)]
    if not tables:
        labels = "; ".join(row.label for table in named for row in table.rows)
        parser.error(f"--only {options.only!r} is no label's pattern; labels: {labels}")
    if options.write and options.only != "*":
        parser.error("--write puts complete tables into the page: leave out --only")
    for table in tables:
        if options.write:
            write_bytes(PAGE, table.put_into(PAGE.read_text(encoding="utf-8")).encode())
        else:
            print(table.measure(options.only), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
