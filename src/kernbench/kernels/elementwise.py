"""Elementwise programs: expressions of operations on elements, and the kernels that compute and copy elements.

An expression is data: a list of operations. The operands of an operation are inputs of the expression, results of
earlier operations, and constants. A program loads each input once and stores each result once, whatever the number of
operations. Two expressions compose into one.

The kernels split their elements over programs by cube, then PE. With ``split=False``, which replicated tensors need,
every program computes all of them. A work table is described in `kernbench.kernels.shares`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from kernbench.common.dtypes import F32, I64, Array, DType, DTypeLike, Shape
from kernbench.common.operators import OPERATORS
from kernbench.common.values import value
from kernbench.kernels import PartialWork
from kernbench.kernels.functions import ElementFunction, alike_number, call
from kernbench.kernels.shares import blocks, own_lines, share
from kernbench.kernels.tiling import MOST_NUMBERS, Box, MemoryRates, boxes, own_boxes, ramp_block
from kernbench.kernels.view import View
from kernbench.triton_emu.checks import element_type
from kernbench.triton_emu.handles import Handle, Number, Ref
from kernbench.triton_emu.tl_context import TLContext


@value(guarded=False)
class Input:
    """Input ``index`` of an expression."""

    index: int


@value(guarded=False)
class Intermediate:
    """The result of operation ``index`` of an expression."""

    index: int


ValueReference: TypeAlias = Input | Intermediate
Constant: TypeAlias = Number | str | DType | None
"""An operand that is no array: a number, or an option of the function"""
Term: TypeAlias = ValueReference | Constant


@value
class Operation(PartialWork):
    """A function of elements and its operands: ``function(tl, *operands, **options)``.

    ``compute`` is the element type to which arrays among the operands are cast; None leaves them as they are.
    ``conditions`` are positions of operands that are not cast. The result is rounded to ``rounded``; None leaves it in
    the type that the function yields.
    """

    function: ElementFunction
    operands: tuple[Term, ...] = ()
    compute: DType | None = None
    rounded: DType | None = None
    conditions: tuple[int, ...] = ()
    options: tuple[tuple[str, Term], ...] = ()

    @property
    def references(self) -> Iterator[ValueReference]:
        """The inputs and intermediate results among the operands."""
        for operand in (*self.operands, *[option for _, option in self.options]):
            if isinstance(operand, Input | Intermediate):
                yield operand

    @property
    def work_key(self) -> object:
        """The content that decides the work of the operation: all but the values of most floats."""
        operands = tuple([alike_number(self.function, operand) for operand in self.operands])
        options = tuple([(name, alike_number(self.function, option)) for name, option in self.options])
        return self.function, operands, self.compute, self.rounded, self.conditions, options

    def replace(self, replacement: Callable[[Term], Term]) -> Operation:
        """Return the operation with ``replacement(operand)`` in place of each operand."""
        operands = tuple([replacement(operand) for operand in self.operands])
        options = tuple([(name, replacement(operand)) for name, operand in self.options])
        return replace(self, operands=operands, options=options)

    def apply(self, read: Callable[[Term, DType | None], Handle | Constant], tl: TLContext) -> Handle:
        """Compute the result; ``read`` returns the value of an operand, cast to a type."""
        types = [None if i in self.conditions else self.compute for i in range(len(self.operands))]
        operands = [read(operand, dtype) for operand, dtype in zip(self.operands, types, strict=True)]
        options = {name: read(operand, self.compute) for name, operand in self.options}
        result = self.function(tl, *operands, **options)
        return result if self.rounded is None else tl.cast(result, self.rounded)


@value
class Expression:
    """Operations on elements, in an order in which they can be computed, and the values among them that are results.

    Without operations, the results are inputs: a copy.
    """

    operations: tuple[Operation, ...]
    results: tuple[ValueReference, ...]

    @staticmethod
    def of(function: ElementFunction, *operands: Term) -> Expression:
        """Return the expression of one operation, with one result."""
        return Expression((Operation(function, operands),), (Intermediate(0),))

    def then(self, consumer: Expression, operands: Sequence[Term], stored: Sequence[ValueReference] = ()) -> Expression:
        """Return this expression followed by ``consumer``.

        Input i of the consumer becomes ``operands[i]``: an input or an intermediate of this expression, or a number.
        The results are those of the consumer, then ``stored``, which are values of this expression.
        """
        first = len(self.operations)

        def place(operand: Term) -> Term:
            if isinstance(operand, Input):
                return operands[operand.index]
            return Intermediate(first + operand.index) if isinstance(operand, Intermediate) else operand

        results = [place(result) for result in consumer.results]
        references = [result for result in results if isinstance(result, Input | Intermediate)]
        return Expression(
            (*self.operations, *[operation.replace(place) for operation in consumer.operations]),
            (*references, *stored),
        )

    def computed_in(self, dtype: DType) -> Expression:
        """Return this expression with ``dtype`` as the type to compute in, for operations that have none."""
        operations = [replace(operation, compute=operation.compute or dtype) for operation in self.operations]
        return Expression(tuple(operations), self.results)

    def evaluate(self, inputs: Iterable[Handle], tl: TLContext) -> Iterator[tuple[int, Handle]]:
        """Compute the operations in order. Yield the position and the handle of each result when it is computed.

        Each value is cast to a type once, and dropped after the last operation that uses it, to free its scratch.
        """
        values: dict[ValueReference, Handle] = {Input(index): handle for index, handle in enumerate(inputs)}
        casts: dict[tuple[ValueReference, DType], Handle] = {}
        del inputs  # of which a list would keep the handles

        def read(operand: Term, dtype: DType | None) -> Handle | Constant:
            if not isinstance(operand, Input | Intermediate):
                return operand
            handle = values[operand]
            if dtype is None or handle.dtype is dtype:
                return handle
            if (operand, dtype) not in casts:
                casts[operand, dtype] = tl.cast(handle, dtype)
            return casts[operand, dtype]

        last_uses = {x: index for index, operation in enumerate(self.operations) for x in operation.references}
        yield from ((i, values[result]) for i, result in enumerate(self.results) if isinstance(result, Input))
        for index, operation in enumerate(self.operations):
            values[Intermediate(index)] = operation.apply(read, tl)
            for position, result in enumerate(self.results):
                if result == Intermediate(index):
                    yield position, values[result]
            for unused in [x for x in values if last_uses.get(x) == index]:
                del values[unused]
                casts = {key: handle for key, handle in casts.items() if key[0] != unused}


COPY = Expression((), (Input(0),))


def run_expression(
    expression: Expression, results: Sequence[View], inputs: Sequence[View], parts: Iterable[Box], tl: TLContext
) -> None:
    """Compute ``expression`` on ``parts`` (corner and extents) of arrays of one shape, part by part."""
    for corner, extents in parts:
        loaded = (view.tile(corner, extents).load(tl) for view in inputs)
        for position, handle in expression.evaluate(loaded, tl):
            tile = results[position].tile(corner, extents)
            tile.store(tl.broadcast(tl.cast(handle, tile.dtype), extents), tl)


@value
class Task:
    """An expression on arrays of one shape, in any layout. Each program computes a share of the results.

    ``rates`` of the machine's memory matter for inputs that repeat along an axis, which several programs read.
    """

    expression: Expression
    results: tuple[View, ...]
    inputs: tuple[View, ...]
    rates: MemoryRates | None = None

    def run(self, addresses: Sequence[int], tl: TLContext) -> None:
        """Compute this program's share. ``addresses``: those of the results, then of the inputs."""
        layouts = (*self.results, *self.inputs)
        views = [view.on(address) for view, address in zip(layouts, addresses, strict=True)]
        results, inputs = views[: len(self.results)], views[len(self.results) :]
        kind = self.expression, tuple([layout.form for layout in layouts])
        parts = tl.repeated(own_boxes(views, tl, rates=self.rates), kind)
        run_expression(self.expression, results, inputs, parts, tl)


def write_ramp(out: View, start: float, step: float, tl: TLContext) -> None:
    """Set element i of a contiguous array to ``start + i step``, for this program's share."""
    wide = F32 if out.dtype.is_float else I64
    first, size = share(out.extents[0], tl)
    for at, count in blocks(size, ramp_block(), first):
        x = tl.cast(tl.iota((count,), "i32"), wide)
        x = x if step == 1 else x * step
        x = x if start + at * step == 0 else x + (start + at * step)
        out.tile((at,), (count,)).store(x, tl)


def write_numbers(out_ptr: int, *, size: int, dtype: DType, numbers: Array | None, tl: TLContext) -> None:
    """Write ``numbers`` (size,), or zeros in a run without data, to contiguous memory. Programs share the elements."""
    out = View.row_major(out_ptr, (size,), dtype)
    first, count = share(size, tl)
    for at, extent in blocks(count, MOST_NUMBERS, first):
        values = tl.zeros((extent,), dtype) if numbers is None else tl.constant(numbers[at : at + extent], dtype)
        out.tile((at,), (extent,)).store(values, tl)


# kernels on contiguous arrays of ``n`` elements


def elementwise(
    op: str,
    x_ptr: int,
    y_ptr: int | None,
    z_ptr: int | None,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = op(x)``, ``op(x, y)`` or ``op(x, y, z)`` for the elementwise operator named ``op``.

    Pass None for pointers that the operator does not take. A comparison yields i8, every other operator ``dtype``.
    """
    pointers = [ptr for ptr in (x_ptr, y_ptr, z_ptr) if ptr is not None]
    expression = Expression.of(call(op), *[Input(index) for index in range(len(pointers))])
    _run_on_vectors(expression, pointers, out_ptr, _result_type(op, dtype), n, dtype, block, split, tl)


def add(
    x_ptr: int,
    y_ptr: int,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = x + y``."""
    elementwise("add", x_ptr, y_ptr, None, out_ptr, n, dtype, block, split, tl=tl)


def mul(
    x_ptr: int,
    y_ptr: int,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = x * y``."""
    elementwise("mul", x_ptr, y_ptr, None, out_ptr, n, dtype, block, split, tl=tl)


SILU_MUL = Expression(
    (
        Operation(call("silu"), (Input(0),), compute=F32),
        Operation(call("mul"), (Intermediate(0), Input(1)), compute=F32),
    ),
    (Intermediate(1),),
)


def silu_mul(
    gate_ptr: int,
    up_ptr: int,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = silu(gate) * up``, as in a gated MLP, in f32, rounded once."""
    _run_on_vectors(SILU_MUL, (gate_ptr, up_ptr), out_ptr, dtype, n, dtype, block, split, tl)


def _result_type(op: str, dtype: DTypeLike) -> DTypeLike:
    """Return the type that the operator called ``op`` yields on operands of ``dtype``."""
    return (op in OPERATORS and OPERATORS[op].makes) or dtype


def _run_on_vectors(
    expression: Expression,
    pointers: Sequence[int],
    out_ptr: int,
    out_dtype: DTypeLike,
    n: int,
    dtype: DTypeLike,
    block: int,
    split: bool,
    tl: TLContext,
) -> None:
    """Compute ``expression`` on this program's share of contiguous arrays, in blocks of at most ``block`` elements."""
    inputs = [View.row_major(ptr, (n,), element_type(dtype)) for ptr in pointers]
    result = View.row_major(out_ptr, (n,), element_type(out_dtype))
    parts = own_boxes((result,), tl, split=split, limit=block)
    run_expression(expression, (result,), inputs, parts, tl)


def elementwise_composite(
    op: str,
    x_ptr: int,
    y_ptr: int | None,
    z_ptr: int | None,
    out_ptr: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    out_dtype: DTypeLike | None = None,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``elementwise`` on matrices as one composite that streams operands and result. Programs split the rows.

    The dtype of the result is ``out_dtype``, or ``dtype`` if ``out_dtype`` is not set.
    """
    first, count = share(rows, tl, split)
    if not count:
        return
    item, result = element_type(dtype), element_type(out_dtype or dtype)
    start = first * columns
    refs: list[Ref] = [
        View.row_major(ptr + start * item.itemsize, (count, columns), item).ref(tl)
        for ptr in (x_ptr, y_ptr, z_ptr)
        if ptr is not None
    ]
    tl.composite(op, *refs, out_ptr=out_ptr + start * result.itemsize, out_dtype=result)


def elementwise_shards(
    op: str,
    x_ptr: int,
    y_ptr: int | None,
    out_ptr: int,
    lines: tuple[int, ...],
    dtype: DTypeLike,
    number: float | None = None,
    number_first: bool = False,
    block: int = 65536,
    *,
    tl: TLContext,
) -> None:
    """Apply the operator ``op`` to x, to x and y, or to x and a number (``number_first``: to the number and x).

    ``lines``: (cube, pe, offset in bytes, elements) of every shard and copy. All tensors have the same placement.
    """
    pointers, item = [ptr for ptr in (x_ptr, y_ptr) if ptr is not None], element_type(dtype)
    operands: list[Term] = [Input(index) for index in range(len(pointers))]
    if number is not None:
        operands.insert(0 if number_first else len(operands), number)
    expression = Expression.of(call(op), *operands)
    for offset, count in own_lines(lines, 4, tl):
        result, *inputs = [View.row_major(ptr + offset, (count,), item) for ptr in (out_ptr, *pointers)]
        run_expression(expression, (result,), inputs, boxes((count,), block), tl)


# Copies by address arithmetic: a kernel sees a sharded tensor as contiguous bytes at its virtual address. Strides and
# offsets are in bytes.


def offset_copy(
    src_ptr: int, dst_ptr: int, n: int, stride: int, dtype: DTypeLike, block: int = 65536, *, tl: TLContext
) -> None:
    """In program p, copy ``n`` elements from ``src_ptr + p * stride`` to ``dst_ptr + p * stride``.

    ``stride`` is in bytes. Programs are numbered by cube, then PE. At most ``block`` elements move at a time.
    """
    start = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * stride
    steps = (tl.itemsize(dtype),)
    _copy_boxes(src_ptr + start, dst_ptr + start, steps, steps, boxes((n,), block), dtype, tl)


def strided_copy(
    src_ptr: int,
    dst_ptr: int,
    shape: tuple[int, ...],
    src_strides: tuple[int, ...],
    dst_strides: tuple[int, ...],
    dtype: DTypeLike,
    src_offset: int = 0,
    dst_offset: int = 0,
    block: int = 65536,
    *,
    tl: TLContext,
) -> None:
    """Copy an array of ``shape`` between two strided layouts; strides and offsets are in bytes.

    The first axis is split over programs. At most ``block`` elements move at a time; if one index of that
    axis has more, all its elements move together.
    """
    first, count = share(shape[0], tl)
    rows = blocks(count, max(1, block // prod(shape[1:])), first)
    parts = (((row, *(0 for _ in shape[1:])), (size, *shape[1:])) for row, size in rows)
    _copy_boxes(src_ptr + src_offset, dst_ptr + dst_offset, src_strides, dst_strides, parts, dtype, tl)


def shards_to_rows(
    src_ptr: int, dst_ptr: int, shards: tuple[int, ...], row_bytes: int, dtype: DTypeLike, *, tl: TLContext
) -> None:
    """In each program, copy its own shards of a matrix to their windows in a row-major matrix.

    ``shards`` has six numbers for each shard: (cube, PE, source offset, rows, columns, target offset), offsets in
    bytes. ``row_bytes`` is the row stride of the target.
    """
    item = tl.itemsize(dtype)
    for src, rows, columns, dst in own_lines(shards, 6, tl):
        part = ((0, 0), (rows, columns))
        _copy_boxes(src_ptr + src, dst_ptr + dst, (columns * item, item), (row_bytes, item), [part], dtype, tl)


def copy_windows(
    src_ptr: int,
    dst_ptr: int,
    lines: tuple[int, ...],
    axes: int,
    dtype: DTypeLike,
    block: int = 65536,
    *,
    tl: TLContext,
) -> None:
    """Copy boxes of elements from one tensor to another, at most ``block`` elements at a time.

    ``lines``: (cube, pe, source offset, target offset), then three groups of ``axes`` numbers: extents, source strides,
    target strides. Offsets and strides are in bytes.
    """
    for src, dst, *numbers in own_lines(lines, 4 + 3 * axes, tl):
        shape, src_strides, dst_strides = (tuple(numbers[at : at + axes]) for at in range(0, 3 * axes, axes))
        _copy_boxes(src_ptr + src, dst_ptr + dst, src_strides, dst_strides, boxes(shape, block), dtype, tl)


def _copy_boxes(
    src_ptr: int,
    dst_ptr: int,
    src_strides: Shape,
    dst_strides: Shape,
    parts: Iterable[Box],
    dtype: DTypeLike,
    tl: TLContext,
) -> None:
    """Copy ``parts`` of an array, part by part."""
    for corner, extents in parts:
        values = tl.load(src_ptr + _offset(corner, src_strides), extents, dtype, strides=src_strides)
        tl.store(dst_ptr + _offset(corner, dst_strides), values, strides=dst_strides)


def _offset(corner: Shape, strides: Shape) -> int:
    return sum([index * stride for index, stride in zip(corner, strides, strict=True)])
