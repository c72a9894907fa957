"""``tl`` calls for the GEMM engine."""

from __future__ import annotations

from kernbench.common.dtypes import DType, Shape
from kernbench.common.operators import OPERATORS
from kernbench.messages.commands import DotCommand
from kernbench.triton_emu.checks import element_type
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.source import kernel_error


class DotCalls(Issuer):
    """The matrix product."""

    __slots__ = ()

    def dot(
        self,
        a: Handle,
        b: Handle,
        acc: Handle | None = None,
        out_dtype: object = None,
        trans_a: bool = False,
        trans_b: bool = False,
    ) -> Handle:
        """``op(a) @ op(b) + acc`` as a new handle: (m, k) by (k, n), where op swaps the axes if asked.

        Its type is ``out_dtype``, else that of ``acc``, else that of the operands (i8: i32). ``acc`` has the shape and
        type of the result. KernelError for shapes and types that do not fit.
        """
        call = self._call()
        item = factor_type("dot", self._own(a).dtype, self._own(b).dtype, self._site.dot_dtypes)
        shape = product_shape("dot", a.shape, b.shape, trans_a, trans_b)
        out = _result_type(item, acc if acc is None else self._own(acc), out_dtype)
        if acc is not None and (acc.shape != shape or acc.dtype is not out):
            raise kernel_error(f"acc is {acc.shape} {acc.dtype}, the result {shape} {out}: they must be the same")
        result = self._fresh("dot", shape, out, call)
        reads = (a, b) if acc is None else (a, b, acc)
        serial, after = self._ordered(reads)
        command = DotCommand(
            serial=serial,
            line=call.line,
            after=after,
            a=a.array,
            b=b.array,
            dst=result.array,
            acc=None if acc is None else acc.array,
            trans_a=bool(trans_a),
            trans_b=bool(trans_b),
        )
        self._issue(command, reads, result)
        return result


def factor_type(what: str, a: DType, b: DType, known: tuple[DType, ...]) -> DType:
    """The one type of the factors of a product, ``known`` to the machine."""
    if a is not b:
        raise kernel_error(f"{what} of {a} and {b}: one type is needed; use tl.cast")
    if a not in known:
        names = ", ".join(item.name for item in known)
        raise kernel_error(f"this machine does not multiply {a} matrices; it does {names}; use tl.cast")
    return a


def product_shape(what: str, a: Shape, b: Shape, trans_a: bool = False, trans_b: bool = False) -> Shape:
    """(m, n) of (m, k) by (k, n), each transposed if asked."""
    if len(a) != 2 or len(b) != 2:
        raise kernel_error(f"{what} takes matrices (two axes), not shapes {a} and {b}")
    m, k = reversed(a) if trans_a else a
    inner, n = reversed(b) if trans_b else b
    if k != inner:
        flags = f" (trans_a={trans_a}, trans_b={trans_b})" if trans_a or trans_b else ""
        raise kernel_error(f"{what} of shapes {a} and {b}{flags}: inner sizes {k} and {inner} differ")
    return m, n


def _result_type(item: DType, acc: Handle | None, out_dtype: object) -> DType:
    if out_dtype is not None:
        out = element_type(out_dtype)
    else:
        out = OPERATORS["dot"].result_dtype(item, item) if acc is None else acc.dtype
    if out.is_float != item.is_float:
        raise kernel_error(f"a dot of {item} does not make {out}: tl.cast turns integers and floats into each other")
    return out
