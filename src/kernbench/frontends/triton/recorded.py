"""Replay of ``triton.language`` functions: Triton checks a call once per signature; later calls repeat its requests.

Triton's semantics (types, promotion, broadcasting) derive their requests to the builder from the types of tensors and
from plain arguments, never from the elements. The first call with a signature therefore goes through Triton and is
recorded; later ones send the builder the same requests with other operands. Errors are not recorded: Triton raises them
each time. Values are immutable, so a call with the same known operands returns the earlier result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import field
from operator import itemgetter
from types import EllipsisType, NoneType
from typing import TypeAlias

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from kernbench.common.values import state
from kernbench.frontends.triton.values import Symbolic, TensorHandle, Value, is_symbolic

CallOperand: TypeAlias = Value | int | float
"""A handle of the builder. For an operator, also a plain number that it combines with a tensor."""
Method: TypeAlias = Callable[..., object]
"""A method of the builder."""
Pick: TypeAlias = Callable[[list[object]], Iterable[object]]
"""A function that picks the arguments of a request from the values of a replay."""

_TlTensor = tl.core.tensor
_LIMIT = 4096  # signatures of a function; calls with ever new numbers must not fill the memory
_MOST_CACHED, _SMALL = 64, 1024  # cached results of a signature, and their maximum number of elements
_PLAIN = frozenset((int, bool, str, NoneType, EllipsisType))
_ALL = slice(None)
_ONE = (1,)
_SEQUENCES = frozenset((tuple, list, tl.tuple))
_NAMES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "gt", "ge", "lt", "le", "eq", "ne")
# Requests about constants are computed once. The following requests are repeated, since they depend on the program.
_OF_PROGRAM = frozenset(("create_get_program_id", "create_get_num_programs"))
_OPERATORS = frozenset(f"__{reflected}{name}__" for name in _NAMES for reflected in ("", "r"))


class _NotPlainError(Exception):
    """An argument is neither a tensor nor plain, so a recording cannot cover Triton's use of it."""


@state
class _Recording:
    """The builder requests of a call, each with a function that picks its arguments from a list of values.

    The list contains constants, the operands of the call, and the result of each request so far. ``result``: the list
    index of the call's result (None: a constant) and the attributes of its tensor; None if the call returns nothing.
    Small known results of known operands are cached, since a loop repeats the same calls.
    """

    constants: tuple[object, ...]
    requests: tuple[tuple[Method, Pick], ...]
    result: tuple[int | None, dict[str, object]] | None
    _cached: dict[tuple[int | bytes, ...], tuple[list[CallOperand], tl.tensor]] = field(default_factory=dict)

    def replay(self, operands: list[CallOperand]) -> tl.tensor | None:
        """Return the result of the recorded requests for other operands."""
        key = tuple(map(_key_of, operands))
        cached = self._cached.pop(key, None)
        if cached is not None:
            self._cached[key] = cached  # moved to the end: evicted last
            return cached[1]
        tensor = self._send_requests(operands)
        if operands and tensor is not None and _is_small(tensor.handle) and all(map(_is_known, operands)):
            if len(self._cached) == _MOST_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = operands, tensor  # with the operands: while they exist, no other object has their ids
        return tensor

    def _send_requests(self, operands: list[CallOperand]) -> tl.tensor | None:
        values: list[object] = [*self.constants, *operands]
        for method, pick in self.requests:
            values.append(method(*pick(values)))
        if self.result is None:
            return None
        place, attributes = self.result
        tensor = _TlTensor.__new__(_TlTensor)
        tensor.__dict__ = attributes.copy()
        if place is not None:
            tensor.handle = values[place]
        return tensor


class _CallRecorder:
    """The builder's stand-in while a call is recorded: it forwards requests, and records those about operands."""

    def __init__(self, builder: interpreter.InterpreterBuilder, operands: list[CallOperand]) -> None:
        self._builder = builder
        self._operands: list[object] = [*operands]
        self._constants: list[object] = []
        self._requests: list[tuple[Method, list[tuple[bool, int]]]] = []
        self._complete = True

    def __getattr__(self, name: str) -> object:
        member = getattr(self._builder, name)
        return self._record_calls(name, member) if callable(member) else member

    def _record_calls(self, name: str, method: Method) -> Method:
        # A number is an operand only where it becomes a handle. Elsewhere it is, for example, an axis.
        kinds = int | float if name.startswith("get_") else TensorHandle

        def request(*arguments: object, **named: object) -> object:
            result = method(*arguments, **named)
            if isinstance(result, TensorHandle) and self._number(result) is not None:
                result = copy(result)  # an operand, returned unchanged: next time it may be another object
            numbers = [self._number(argument) if isinstance(argument, kinds) else None for argument in arguments]
            varies = any(number is not None for number in numbers)
            if varies or _must_repeat(name, result):
                self._requests.append((method, list(map(self._place, arguments, numbers))))
                self._operands.append(result)
            self._complete &= not named and not any(map(_holds_handles, arguments))
            return result

        return request

    def _place(self, argument: object, number: int | None) -> tuple[bool, int]:
        """Return (True, operand number) for an operand, else (False, number of the constant that it becomes)."""
        if number is not None:
            return True, number
        self._constants.append(argument)
        return False, len(self._constants) - 1

    def _number(self, argument: object) -> int | None:
        return next((i for i, operand in enumerate(self._operands) if operand is argument), None)

    def finish(self, result: object) -> _Recording | None:
        """Return the recording of a call that returned ``result``; None if the call cannot be repeated."""
        if not self._complete:
            return None
        constants, behind = tuple(self._constants), len(self._constants)
        requests = tuple(
            (method, _make_pick([number + behind * is_operand for is_operand, number in places]))
            for method, places in self._requests
        )
        if result is None:
            return _Recording(constants, requests, None)
        if not isinstance(result, _TlTensor):
            return None
        number = self._number(result.handle)
        attributes = vars(result) | {"handle": result.handle if number is None else None}
        return _Recording(constants, requests, (None if number is None else behind + number, attributes))


def _must_repeat(name: str, result: object) -> bool:
    """Return whether a builder request about constants may have another result in the next call."""
    if isinstance(result, TensorHandle):
        return name in _OF_PROGRAM or is_symbolic(result)
    return result is None and not name.startswith("get_")


def _make_pick(places: list[int]) -> Pick:
    """Return a function, implemented in C, that picks the elements of a list at ``places``."""
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    return itemgetter(slice(first, first + len(places)))


def _key_of(operand: CallOperand) -> int | bytes:
    """Return the cache key of an operand: its number if it is one integer, else its id."""
    if isinstance(operand, TensorHandle) and type(operand) is TensorHandle:
        data = operand.data
        if type(data) is np.ndarray and data.shape == _ONE and data.dtype.kind == "i":
            return data.tobytes()
    return id(operand)


def _is_known(operand: CallOperand) -> bool:
    if isinstance(operand, TensorHandle) and type(operand) is TensorHandle:
        return not isinstance(operand.data, Symbolic)
    return True


def _is_small(result: TensorHandle) -> bool:
    """Return whether a call's result is known, is no pointer, and is small enough to cache."""
    return type(result) is TensorHandle and not isinstance(result.data, Symbolic) and result.data.size <= _SMALL


def _holds_handles(argument: object) -> bool:
    return isinstance(argument, tuple | list) and any(isinstance(element, TensorHandle) for element in argument)


def patch(owner: object, name: str, function: Method, _builder: object, scope: interpreter._LangPatchScope) -> None:
    """Set ``owner.name`` to ``function`` with replay of recorded calls. Replaces the interpreter's ``_patch_attr``."""
    scope.set_attr(owner, name, _replay_calls(function, varying=owner is _TlTensor and name in _OPERATORS))


def _replay_calls(function: Callable[..., object], *, varying: bool) -> Callable[..., object]:
    """Return ``function`` with recording and replay. ``varying``: plain numbers are operands, like tensors."""
    recordings: dict[tuple[object, ...], _Recording | None] = {}
    sign = _sign_operand if varying else _sign

    def call(*arguments: object, _semantic: TritonSemantic | None = None, **named: object) -> object:
        if _semantic is not None:  # within a call that is being recorded, or that cannot be recorded
            return function(*arguments, _semantic=_semantic, **named)
        signature: list[object] = []
        operands: list[CallOperand] = []
        try:
            for argument in arguments:
                if isinstance(argument, _TlTensor):  # as _sign does, for nearly all arguments
                    signature.append(argument.type.name)
                    operands.append(argument.handle)
                else:
                    sign(argument, signature, operands)
            for name, argument in named.items():
                signature.append((name,))
                sign(argument, signature, operands)
        except _NotPlainError:
            return function(*arguments, _semantic=interpreter.interpreter_semantic, **named)
        key = tuple(signature)
        recording = recordings.get(key)
        if recording is not None:
            return recording.replay(operands)
        # A recording of x * x could not distinguish its operands. A recording of x * y also replays x * x.
        alike = len(operands) > len({id(operand) for operand in operands})
        if alike or key in recordings or len(recordings) == _LIMIT:
            return function(*arguments, _semantic=interpreter.interpreter_semantic, **named)
        recorder = _CallRecorder(interpreter.interpreter_builder, operands)
        result = function(*arguments, _semantic=TritonSemantic(recorder), **named)
        recordings[key] = recorder.finish(result)
        return result

    return call


def _sign_operand(argument: object, signature: list[object], operands: list[CallOperand]) -> None:
    """Sign like `_sign`, but of a plain number, sign only the type, the sign, and the type that it fits."""
    if isinstance(argument, int) and type(argument) is int:
        operands.append(argument)
        signature += (int, argument < 0, (~argument if argument < 0 else argument).bit_length())
    elif isinstance(argument, float) and type(argument) is float:
        operands.append(argument)
        signature += (float, interpreter.interpreter_semantic.to_tensor_type(argument).name)
    else:
        _sign(argument, signature, operands)


def _sign(argument: object, signature: list[object], operands: list[CallOperand]) -> None:
    """Append the signature of ``argument``, which selects the recording, and its operands."""
    kind = type(argument)
    if isinstance(argument, _TlTensor):
        signature.append(argument.type.name)
        operands.append(argument.handle)
        return
    signature.append(kind)
    if kind in _PLAIN:
        signature.append(argument)
    elif isinstance(argument, float) and kind is float:
        signature.append(argument.hex())  # 0.0 is not -0.0
    elif isinstance(argument, tl.dtype):
        signature.append(argument.name)
    elif isinstance(argument, tl.constexpr) and kind is tl.constexpr:
        _sign(argument.value, signature, operands)
    elif isinstance(argument, slice):
        if argument == _ALL:
            signature.append(None)
        else:
            _sign((argument.start, argument.stop, argument.step), signature, operands)
    elif isinstance(argument, tuple | list | tl.tuple) and kind in _SEQUENCES:
        signature.append(len(argument))
        for element in argument:
            _sign(element, signature, operands)
    else:
        raise _NotPlainError
