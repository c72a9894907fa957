"""``tl`` calls that give the tile scheduler a whole operation on arrays in TCM and in memory."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.dtypes import F32
from kernbench.messages.commands import EpilogueStep, GemmComposite, MathComposite, MemoryRef
from kernbench.triton_emu.checks import Ints, as_shape, element_type, number_as, pointer, strides_of
from kernbench.triton_emu.composite_checks import (
    GEMM,
    Form,
    Input,
    Step,
    Stream,
    check_step,
    elementwise_form,
    gemm_form,
    given,
    listed,
    output,
    split_output,
    step_array,
)
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.refs import Ref
from kernbench.triton_emu.source import kernel_error


class CompositeCalls(Issuer):
    """Names for arrays in memory, and operations on them by tiles."""

    __slots__ = ()

    def ref(self, ptr: int, shape: Ints, dtype: object, strides: Ints | None = None) -> Ref:
        """The array at virtual address ``ptr``, which stays there, as an operand of ``composite``; costs nothing.

        One or two axes; ``strides``: bytes per axis, row-major without. KernelError for arguments that do not fit.
        """
        self._runner.check()
        va, extent, item = pointer(ptr), as_shape(shape), element_type(dtype)
        if len(extent) not in (1, 2):
            raise kernel_error(f"a ref has one or two axes, not the shape {extent}")
        return Ref(self._site, MemoryRef(va, extent, item, strides_of(strides, extent, item)))

    def composite(
        self,
        op: str,
        *operands: Input | Sequence[Step],
        a: Handle | Ref | None = None,
        b: Handle | Ref | None = None,
        out_ptr: int | None = None,
        epilogue: Sequence[Step] = (),
        out_dtype: object = None,
        out_strides: Ints | None = None,
    ) -> None:
        """``op`` of ``operands``, tile by tile, written to memory at ``out_ptr``: a keyword, or behind the operands.

        The operands of a gemm go by ``a`` and ``b`` too, and the epilogue may follow a positional ``out_ptr``.
        ``"gemm"``: (m, k) by (k, n), each a handle or a ref. The name of an elementwise operator: handles and refs of
        one shape of one or two axes, and numbers. The ``epilogue`` steps work on each tile before it is rounded to
        ``out_dtype`` and written, at ``out_strides`` bytes per axis. Without ``out_dtype`` the result has the type
        that ``dot`` or the operator gives. KernelError for what does not fit.
        """
        line = self._call().line
        inputs, place, trailing = split_output(op, (*given(a), *operands, *given(b)), out_ptr)
        streams = [self._stream(x) for x in inputs]
        form = gemm_form(streams, self._site.dot_dtypes) if op == GEMM else elementwise_form(op, streams)
        out = output(op, form, pointer(place), out_dtype, out_strides)
        steps = listed(epilogue or trailing)
        after_tile = tuple([self._step(step, form) for step in steps])
        reads = [x for x in (*inputs, *(x for _, *more in steps for x in more)) if isinstance(x, Handle)]
        serial, after = self._ordered(reads)
        command: GemmComposite | MathComposite
        if op == GEMM:
            left, right = form.arrays
            command = GemmComposite(
                serial=serial, line=line, after=after, a=left, b=right, out=out, epilogue=after_tile
            )
        else:
            command = MathComposite(
                serial=serial, line=line, after=after, operator=op, inputs=form.inputs, out=out, epilogue=after_tile
            )
        self._issue(command, reads)

    def _stream(self, x: Input) -> Stream:
        """An operand as the scheduler is told of it."""
        if isinstance(x, Handle):
            return self._own(x).array
        if isinstance(x, Ref) and x.site != self._site:
            raise kernel_error(f"{x!r} belongs to a kernel on {x.site}; this is {self._site}")
        return x.array if isinstance(x, Ref) else x

    def _step(self, step: Step, form: Form) -> EpilogueStep:
        name, *operands = step
        check_step(name, operands)
        if not operands:
            return EpilogueStep(name)
        (x,) = operands
        if isinstance(x, Handle | Ref):
            return EpilogueStep(name, step_array(name, self._stream(x), form))
        return EpilogueStep(name, number_as(x, F32))
