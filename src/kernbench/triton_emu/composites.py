"""``tl`` calls that pass a complete operation on arrays in TCM and in memory to the tile scheduler.

Pure functions check the arguments of ``tl.composite`` and return the operands of its command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import F32, I32, DType, Shape
from kernbench.common.errors import there_are
from kernbench.common.operators import EPILOGUE, OPERATORS
from kernbench.common.values import value
from kernbench.messages.commands import (
    ArrayPlace,
    Block,
    BlockChoice,
    Command,
    Epilogue,
    MemoryRef,
    Opcode,
    Operand,
    Params,
)
from kernbench.triton_emu.block_sizes import BlockLimits
from kernbench.triton_emu.checks import (
    ELEMENTWISE,
    Ints,
    as_shape,
    check_has_bits,
    check_no_overlap,
    element_type,
    factor_type,
    number_as,
    pointer,
    product_shape,
    strides_of,
)
from kernbench.triton_emu.handles import Handle, Number, Ref
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.source import kernel_error
from kernbench.triton_emu.tile_plans import TileSizes

StepInput: TypeAlias = Handle | Ref | Number
StreamInput: TypeAlias = ArrayPlace | Number
EpilogueCall: TypeAlias = tuple[str] | tuple[str, StepInput]

GEMM = "gemm"
_CHOICES: Mapping[str, BlockChoice] = MappingProxyType({"auto": "auto", "least": "least"})
_ARRAY_STEPS = ("bias", "add", "scale_rows", "scale_columns")
_COLUMN_STEPS = ("bias", "scale_columns")
"""Steps whose operand is a vector along the columns of the result"""


@value
class Form:
    """A composite whose operands are checked: its inputs, their element type, and the shape and type of the result.

    ``inputs`` are matrices and numbers. ``shape`` is the shape of the result for the kernel; the scheduler writes a
    result of one axis as a matrix of one row.
    """

    inputs: tuple[StreamInput, ...]
    dtype: DType
    shape: Shape
    result: DType

    @property
    def arrays(self) -> tuple[ArrayPlace, ...]:
        """The operands that are arrays."""
        return tuple([x for x in self.inputs if isinstance(x, Operand | MemoryRef)])


def as_operands(operand: StepInput | None) -> tuple[StepInput, ...]:
    """Return a keyword operand as a tuple, empty for None."""
    return () if operand is None else (operand,)


def split_output(
    op: str, arguments: tuple[StepInput | Sequence[EpilogueCall], ...], out_ptr: int | None
) -> tuple[tuple[StepInput, ...], object, Sequence[EpilogueCall]]:
    """Return the operands of ``op``, its output address, and the epilogue.

    The output is ``out_ptr`` or else the argument after the operands; an epilogue may follow it.
    """
    if op != GEMM and op not in ELEMENTWISE:
        raise kernel_error(f"no composite does {op!r}; {there_are(op, (GEMM, *ELEMENTWISE))}")
    arity = 2 if op == GEMM else ELEMENTWISE[op].arity
    epilogue: Sequence[EpilogueCall] = ()
    operands: list[Any] = list(arguments)
    if len(operands) == arity + 2 and isinstance(operands[-1], tuple | list):
        epilogue = operands.pop()
    if out_ptr is not None:
        operands.append(out_ptr)
    if len(operands) != arity + 1:
        raise kernel_error(f"composite {op!r} takes {arity} operands and out_ptr, not {len(operands)} arguments")
    return tuple(operands[:arity]), operands[arity], epilogue


def gemm_form(inputs: Sequence[StreamInput], dot_dtypes: tuple[DType, ...]) -> Form:
    """Check the inputs of a matrix product, two matrices of one element type, and return its form."""
    a, b = inputs
    if not isinstance(a, Operand | MemoryRef) or not isinstance(b, Operand | MemoryRef):
        raise kernel_error("a gemm multiplies handles and refs, not numbers")
    item = factor_type(GEMM, a.dtype, b.dtype, dot_dtypes)
    shape = product_shape(GEMM, a.shape, b.shape)
    return Form((a, b), item, shape, OPERATORS["dot"].result_dtype(item, item))


def elementwise_form(op: str, inputs: Sequence[StreamInput]) -> Form:
    """Check the inputs of elementwise operator ``op`` and return its form.

    The arrays among the inputs have one shape and one element type. Numbers are converted to that type.
    """
    arrays = [x for x in inputs if isinstance(x, Operand | MemoryRef)]
    if not arrays:
        raise kernel_error(f"composite {op!r} of numbers alone: one operand at least is a handle or a ref")
    item, shape = arrays[0].dtype, arrays[0].shape
    for x in arrays:
        if x.dtype is not item:
            raise kernel_error(f"{op} of {item} and {x.dtype}: one type is needed; use tl.cast")
        if x.shape != shape:
            raise kernel_error(f"{op} of shapes {shape} and {x.shape}: arrays in a composite have one shape")
    check_has_bits(ELEMENTWISE[op], item)
    if len(shape) not in (1, 2):
        raise kernel_error(f"arrays in a composite have one or two axes, not the shape {shape}")
    streams = [as_matrix(x) if isinstance(x, Operand | MemoryRef) else number_as(x, item) for x in inputs]
    return Form(tuple(streams), item, shape, ELEMENTWISE[op].result_dtype(*(item,) * len(inputs)))


def as_matrix(array: ArrayPlace) -> ArrayPlace:
    """Return an array of one axis as a matrix of one row."""
    if len(array.shape) == 2:
        return array
    shape = (1, *array.shape)
    if isinstance(array, Operand):
        return replace(array, shape=shape)
    return MemoryRef(array.va, shape, array.dtype, _one_row(array.strides, array.shape))


def _one_row(strides: Shape | None, shape: Shape) -> Shape | None:
    return None if strides is None else (strides[0] * shape[0], strides[0])


def output(op: str, form: Form, va: int, out_dtype: object, out_strides: Ints | None) -> MemoryRef:
    """Return the memory of the result, as a matrix."""
    item = form.result if out_dtype is None else element_type(out_dtype)
    if form.result.is_float and not item.is_float:
        raise kernel_error(f"composite {op!r} of {form.dtype} does not make {item}: use tl.cast")
    strides = strides_of(out_strides, form.shape, item)
    check_no_overlap(strides, form.shape)
    out = as_matrix(MemoryRef(va, form.shape, item, strides))
    assert isinstance(out, MemoryRef)
    return out


def block_sizes(op: str, block: object) -> Block:
    """Return the ``block`` argument in normal form."""
    if block is None:
        return None
    if op != GEMM:
        raise kernel_error(f"composite {op!r} has no blocks: block= is for 'gemm'")
    if isinstance(block, str) and block in _CHOICES:
        return _CHOICES[block]
    sizes = tuple(block) if isinstance(block, tuple | list) else ()
    if len(sizes) != 3 or any(isinstance(x, bool) or not isinstance(x, int | np.integer) or x < 1 for x in sizes):
        raise kernel_error(
            f"block={block!r}: allowed are None, 'auto', 'least' and three whole numbers above 0, (m, k, n)"
        )
    m, k, n = map(int, sizes)
    return m, k, n


def begin_of_blocks(begin: Sequence[int] | None, form: Form, block: Block) -> TileSizes:
    """Return the point (m, k, n) of the iteration space whose block is computed first; (0, 0, 0) by default."""
    if begin is None:
        return 0, 0, 0
    if block is None:
        raise kernel_error(
            f"begin={begin!r} applies to a product by blocks: give block='auto', 'least', or their sizes"
        )
    extents = (*form.arrays[0].shape, form.shape[1])
    integers = isinstance(begin, tuple | list) and all(isinstance(at, int | np.integer) for at in begin)
    if not integers or len(begin) != 3 or not all(0 <= at < n for at, n in zip(begin, extents, strict=True)):
        raise kernel_error(f"begin={begin!r}: must be an element (m, k, n) of the product, which is {extents}")
    m, k, n = map(int, begin)
    return m, k, n


def check_blocks(limits: BlockLimits, form: Form, epilogue: tuple[Epilogue, ...], block: TileSizes) -> None:
    """Raise KernelError unless the sums of a block fit in the matrix unit, and its panels in the scheduler's memory."""
    a, b = form.arrays
    problem = limits.problem((a, b), epilogue, block)
    if problem:
        raise kernel_error(problem)


def as_steps(epilogue: Sequence[EpilogueCall]) -> tuple[EpilogueCall, ...]:
    """Return the epilogue steps as tuples that begin with a name."""
    if isinstance(epilogue, str) or not all(isinstance(step, tuple) and step for step in epilogue):
        raise kernel_error(f'an epilogue is a sequence of tuples, as (("bias", x), ("relu",)), not {epilogue!r}')
    return tuple(epilogue)


def check_step(name: str, operands: Sequence[StepInput]) -> None:
    """Check that a step exists and has the right number and types of operands."""
    if name not in EPILOGUE:
        raise kernel_error(f"unknown epilogue step {name!r}; {there_are(name, tuple(EPILOGUE))}")
    wanted = EPILOGUE[name].arity - 1
    if len(operands) != wanted:
        raise kernel_error(f"epilogue step {name!r} takes {wanted} operands, not {len(operands)}")
    for x in operands:
        if isinstance(x, Handle | Ref) != (name in _ARRAY_STEPS):
            kind = "a handle or a ref" if name in _ARRAY_STEPS else "a number"
            raise kernel_error(f"epilogue step {name!r} takes {kind}, not {x!r}")


def step_array(name: str, array: StreamInput, form: Form) -> ArrayPlace:
    """Return the operand of a step as a vector along the last axis, if it is one for columns, else as a matrix."""
    assert isinstance(array, Operand | MemoryRef)
    types = (form.dtype, F32) if form.dtype.is_float else (form.dtype, I32, F32)
    if array.dtype not in types:
        names = ", ".join(dict.fromkeys(item.name for item in types))
        raise kernel_error(f"epilogue step {name!r} with {array.dtype}: with {form.dtype} operands it takes {names}")
    n = form.shape[-1]
    fits = (
        ((n,), (1, n)) if name in _COLUMN_STEPS else ((*form.shape[:-1], 1),) if name == "scale_rows" else (form.shape,)
    )
    if array.shape not in fits:
        shapes = " or ".join(map(str, fits))
        raise kernel_error(f"epilogue step {name!r} of shape {array.shape}: the result is {form.shape}, so {shapes}")
    return as_vector(array) if name in _COLUMN_STEPS else as_matrix(array)


def as_vector(array: ArrayPlace) -> ArrayPlace:
    """Return a matrix of one row as an array of one axis."""
    if len(array.shape) == 1:
        return array
    shape = array.shape[1:]
    if isinstance(array, Operand):
        return replace(array, shape=shape)
    strides = array.strides
    return MemoryRef(array.va, shape, array.dtype, None if strides is None else strides[1:])


class CompositeCalls(Issuer):
    """Calls that name arrays in memory (``ref``), and compute with them tile by tile (``composite``)."""

    __slots__ = ()

    def ref(self, ptr: int, shape: Ints, dtype: object, strides: Ints | None = None) -> Ref:
        """Return a ref: a name for the array at virtual address ``ptr``, as an operand of ``composite`` or ``send``.

        The array stays in memory. ``shape`` has one or two axes. ``strides`` are the bytes from one element to the next
        along each axis, row-major by default. A ref costs no time. Raises KernelError for invalid arguments.
        """
        self._runner.check()
        va, extent, item = pointer(ptr), as_shape(shape), element_type(dtype)
        if len(extent) not in (1, 2):
            raise kernel_error(f"a ref has one or two axes, not the shape {extent}")
        return Ref(self._site, MemoryRef(va, extent, item, strides_of(strides, extent, item)))

    def composite(
        self,
        op: str,
        *operands: StepInput | Sequence[EpilogueCall],
        a: Handle | Ref | None = None,
        b: Handle | Ref | None = None,
        out_ptr: int | None = None,
        epilogue: Sequence[EpilogueCall] = (),
        out_dtype: object = None,
        out_strides: Ints | None = None,
        block: object = None,
        begin: Sequence[int] | None = None,
    ) -> None:
        """Compute ``op`` of ``operands`` tile by tile and write the result to memory at virtual address ``out_ptr``.

        - ``op``: ``"gemm"``, or the name of an elementwise operator.
        - ``operands``: a gemm has two operands of shapes (m, k) and (k, n), each a handle or a ref; they may be passed
          as the keywords ``a`` and ``b``. The operands of an elementwise operator are numbers, handles and refs; all
          handles and refs have one shape, of one or two axes. ``out_ptr`` and ``epilogue`` may follow as positional
          arguments.
        - ``epilogue``: steps such as ``("bias", x)`` or ``("relu",)``, applied to each tile before the tile is rounded
          to ``out_dtype`` and written.
        - ``out_dtype``: the element type of the result; the default is the result type of ``dot`` or of the operator.
        - ``out_strides``: bytes from one element of the result to the next along each axis, row-major by default.
        - ``block``: the sizes (m, k, n) of the blocks of a gemm, ``"auto"`` for blocks that suit the machine, or
          ``"least"`` for the fewest bytes read. Without ``block``, or without room for panels, operands are streamed
          tile by tile.
        - ``begin``: a point (m, k, n) of the gemm's iteration space, (0, 0, 0) by default. The first block is the one
          that contains this point; along each axis the blocks continue to the end and wrap around.

        Raises KernelError for invalid arguments.
        """
        line, blocks = self._line(), block_sizes(op, block)
        inputs, place, trailing = split_output(op, (*as_operands(a), *operands, *as_operands(b)), out_ptr)
        streams = [self._stream(x) for x in inputs]
        form = gemm_form(streams, self._site.dot_dtypes) if op == GEMM else elementwise_form(op, streams)
        out = output(op, form, pointer(place), out_dtype, out_strides)
        steps = as_steps(epilogue or trailing)
        after_tile = tuple([self._step(step, form) for step in steps])
        if isinstance(blocks, tuple) and self._site.blocks is not None:
            check_blocks(self._site.blocks, form, after_tile, blocks)
        params = Params(epilogue=after_tile, block=blocks, begin=begin_of_blocks(begin, form, blocks))
        reads = tuple([x for x in (*inputs, *(x for _, *more in steps for x in more)) if isinstance(x, Handle)])
        serial, after = self._maker.order(reads)
        opcode, name = (Opcode.GEMM, "composite") if op == GEMM else (Opcode.TILED_MATH, op)
        command = Command(opcode, name, serial, line, after, form.inputs, out, params)
        self._issue(command, reads)

    def _stream(self, x: StepInput) -> StreamInput:
        """Return an operand in the form of the scheduler."""
        if isinstance(x, Handle):
            return self._own(x).array
        if isinstance(x, Ref) and x.site != self._site:
            raise kernel_error(f"{x!r} belongs to a kernel on {x.site}; this is {self._site}")
        return x.array if isinstance(x, Ref) else x

    def _step(self, step: EpilogueCall, form: Form) -> Epilogue:
        name, *operands = step
        check_step(name, operands)
        if not operands:
            return Epilogue(name)
        (x,) = operands
        if isinstance(x, Handle | Ref):
            return Epilogue(name, step_array(name, self._stream(x), form))
        return Epilogue(name, number_as(x, F32))
