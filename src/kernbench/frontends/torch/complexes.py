"""Complex numbers: pairs of f32, the real part before the imaginary part.

A complex tensor is a view of a storage of f32, which has the layout of PyTorch's CPU. Views and copies need no rule.
Arithmetic works on the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.pointwise import apply_all
from kernbench.frontends.torch.storage import TorchOperator, UnknownTypeError
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of, storage_of
from kernbench.kernels.elementwise import Expression, Input, Intermediate, Operation, Term
from kernbench.kernels.functions import call, identity

aten = torch.ops.aten
_ComplexFactor: TypeAlias = Tensor | float | complex


def _is_complex(x: object) -> bool:
    return isinstance(x, complex) or (isinstance(x, AhbmTensor) and x.dtype is torch.complex64)


def _pairs(x: Tensor) -> Tensor:
    """Return the parts as a view of f32 with an additional last axis of 2; other operands unchanged."""
    if not isinstance(x, AhbmTensor) or not _is_complex(x):
        return x
    steps = [2 * step for step in x.stride()]
    return AhbmTensor(storage_of(x), (*x.shape, 2), (*steps, 1), 2 * int(x.storage_offset()), torch.float32)


def _joined(pairs: Tensor) -> Tensor:
    """Return f32 numbers, whose last axis has both parts, as complex numbers."""
    x = pairs.contiguous()
    steps = tuple([step // 2 for step in x.stride()[:-1]])
    return AhbmTensor(storage_of(x), tuple(x.shape[:-1]), steps, int(x.storage_offset()) // 2, torch.complex64)


def _parts(x: Any) -> tuple[Any, Any]:
    if not isinstance(x, Tensor):
        return x.real, x.imag
    pairs = _pairs(x)
    return pairs[..., 0], pairs[..., 1]


def _compute(
    name: str,
    like: Tensor,
    shape: Sequence[int],
    operations: Sequence[Operation],
    at: Sequence[int],
    inputs: Sequence[Tensor],
) -> Tensor:
    """Return complex numbers whose parts are the results ``at`` of ``operations``, in one launch."""
    result = new(tuple(shape), torch.complex64, sip_of(like))
    expression = Expression(tuple(operations), tuple([Intermediate(index) for index in at]))
    apply_all(name, [(expression, _parts(result), inputs, ())])
    return result


def _multiply(a: _ComplexFactor, b: _ComplexFactor) -> Tensor:
    if not _is_complex(a):
        a, b = b, a
    if isinstance(a, Tensor) and not _is_complex(b):
        return _joined(_pairs(a) * (b.unsqueeze(-1) if isinstance(b, Tensor) else b))
    inputs: list[Tensor] = []

    def term(part: Any) -> Term:
        if not isinstance(part, Tensor):
            return float(part)
        inputs.append(part)
        return Input(len(inputs) - 1)

    (ar, ai), (br, bi) = [[term(part) for part in _parts(x)] for x in (a, b)]
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    shape = torch.broadcast_shapes(*[x.shape for x in tensors])
    mul, t = call("mul"), [Intermediate(index) for index in range(6)]
    operations = [
        Operation(mul, (ar, br)),
        Operation(mul, (ai, bi)),
        Operation(call("sub"), (t[0], t[1])),
        Operation(mul, (ar, bi)),
        Operation(mul, (ai, br)),
        Operation(call("add"), (t[3], t[4])),
    ]
    return _compute("mul", tensors[0], shape, operations, (2, 5), inputs)


def conj(x: Tensor) -> Tensor:
    """Return the conjugates, in memory: the machine has no lazy ones."""
    if not _is_complex(x):
        return AhbmTensor(storage_of(x), tuple(x.shape), x.stride(), int(x.storage_offset()), x.dtype)
    operations = (Operation(identity, (Input(0),)), Operation(call("neg"), (Input(1),)))
    return _compute("conj", x, x.shape, operations, (0, 1), _parts(x))


def _on_pairs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the rule of an operator that computes both parts alike."""
    return lambda *args, **options: _joined(function(*map(_pairs, args), **options))


def _add(operator: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(a: Any, b: Any, **options: Any) -> Any:
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and _is_complex(a) and _is_complex(b)):
            return NotImplemented
        return _joined(operator(_pairs(a), _pairs(b), **options))

    return run


def _divide(a: Any, b: Any) -> Any:
    return NotImplemented if _is_complex(b) else _multiply(a, 1 / b)


def _copy(target: Tensor, source: Tensor, *_: object) -> Any:
    if not (_is_complex(target) and _is_complex(source)):
        return NotImplemented
    _pairs(target).copy_(_pairs(source))
    return target


def _zero(x: Tensor) -> Tensor:
    _pairs(x).zero_()
    return x


def _zeros_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Any:
    return (
        _zero(new(tuple(x.shape), torch.complex64, sip_of(x))) if dtype in (None, torch.complex64) else NotImplemented
    )


def _sum(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, **_: object) -> Tensor:
    axes = [axis % x.dim() for axis in dim] if dim else list(range(x.dim()))
    return _joined(_pairs(x).sum(axes, keepdim)) if axes else _joined(_pairs(x).clone())


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    if not all(map(_is_complex, tensors)):
        return NotImplemented
    return _joined(torch.cat([_pairs(x) for x in tensors], dim % tensors[0].dim()))


_RULES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "mul": _multiply,
        "div": _divide,
        "add": _add(aten.add.Tensor),
        "sub": _add(aten.sub.Tensor),
        "neg": _on_pairs(aten.neg.default),
        "clone": lambda x, **_: _joined(aten.clone.default(_pairs(x), memory_format=torch.contiguous_format)),
        "copy_": _copy,
        "zero_": _zero,
        "zeros_like": _zeros_like,
        "sum": _sum,
        "cat": _cat,
    }
)
"""The rules of operators on complex tensors. An operator in place follows from the one that returns its result."""


def run(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on complex tensors. Return NotImplemented if it has no complex operands.

    Raises UnknownTypeError if it has no rule for them.
    """
    name = operator.overloadpacket.__name__
    operands = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]
    if not any(map(_is_complex, operands)):
        return NotImplemented
    rule, is_named = _RULES.get(name.removesuffix("_")), name in _RULES
    rule = _RULES[name] if is_named else rule
    result = NotImplemented if rule is None else rule(*args, **kwargs)
    if result is NotImplemented:
        raise UnknownTypeError(
            f"{program_place()}: {name} of torch.complex64: for complex numbers the machine has "
            f"{', '.join(rule.removesuffix('_') for rule in _RULES)} of complex operands, and views; "
            "torch.view_as_real gives the parts as f32"
        )
    return result if is_named else _copy(args[0], result)
