"""The pointer parameters through which a Triton kernel may write, from its source.

A run without data knows small integer tensors of the host. It forgets those that a launch may write when the launch
enters its queue, before the kernel runs. A pointer that a kernel loads from memory has no parameter. What it writes is
forgotten when it does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from textwrap import dedent
from types import FunctionType

from kernbench.common.values import state

_WRITES = ("store", "atomic_")
"""Beginnings of the names of functions and methods that write through their first argument, or their object"""
_MOST_CALLS = 8
"""Maximum depth of kernels that call kernels"""


@lru_cache(maxsize=1024)
def written_parameters(function: FunctionType, depth: int = 0) -> frozenset[str]:
    """Return the parameters through which ``function`` may write; all of them if it has no source."""
    parameters = frozenset(inspect.signature(function).parameters)
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return parameters
    definition = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if definition is None or depth > _MOST_CALLS:
        return parameters
    flows = _Flows(function.__globals__, depth)
    for statement in definition.body:
        flows.visit(statement)
    return parameters & flows.written()


@state(eq=False)
class _Flows(ast.NodeVisitor):
    """The names that flow into each variable of a kernel, and the names through which it writes."""

    names: Mapping[str, object]
    depth: int
    sources: dict[str, set[str]] = field(default_factory=dict)
    targets: set[str] = field(default_factory=set)

    def written(self) -> frozenset[str]:
        """Return all names that flow into a pointer through which the kernel writes."""
        reached, left = set(self.targets), list(self.targets)
        while left:
            new = self.sources.get(left.pop(), set()) - reached
            reached |= new
            left += new
        return frozenset(reached)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note what flows into the targets of an assignment."""
        for target in node.targets:
            self._flow(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Note what flows into a variable with a type."""
        if node.value is not None:
            self._flow(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Note what flows into a variable that is advanced."""
        self._flow(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Note what flows into a variable within an expression."""
        self._flow(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        """Note what flows into the variable of a loop."""
        self._flow(node.target, node.iter)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Note the pointers through which a call writes."""
        name = ast.unparse(node.func).rpartition(".")[2]
        if name.startswith(_WRITES):
            first = [keyword.value for keyword in node.keywords if keyword.arg in ("pointer", "desc")]
            receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            for pointer in (*node.args[:1], *first, *receiver):
                self.targets |= set(_names_in(pointer))
        callee = self._callee(node)
        if callee is not None:
            self._note_call(node, callee)
        self.generic_visit(node)

    def _callee(self, node: ast.Call) -> FunctionType | None:
        """Return the function of a kernel that a kernel calls by its name."""
        called = self.names.get(node.func.id) if isinstance(node.func, ast.Name) else None
        function = called if isinstance(called, FunctionType) else vars(called).get("fn") if _has_vars(called) else None
        return function if isinstance(function, FunctionType) else None

    def _note_call(self, node: ast.Call, callee: FunctionType) -> None:
        written = written_parameters(callee, self.depth + 1)
        for name, argument in zip(inspect.signature(callee).parameters, node.args, strict=False):
            if name in written:
                self.targets |= set(_names_in(argument))
        for keyword in node.keywords:
            if keyword.arg in written:
                self.targets |= set(_names_in(keyword.value))

    def _flow(self, target: ast.expr, value: ast.expr) -> None:
        names = set(_names_in(value))
        for variable in _names_in(target):
            self.sources.setdefault(variable, set()).update(names)


def _has_vars(subject: object) -> bool:
    return subject is not None and not isinstance(subject, type) and "__dict__" in dir(subject)


def _names_in(expression: ast.expr) -> Iterator[str]:
    """Yield the names in an expression, except those by which it loads: a loaded element is no pointer into them."""
    left: list[ast.AST] = [expression]
    while left:
        node = left.pop()
        if isinstance(node, ast.Name):
            yield node.id
        is_load = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].startswith("load")
        if not is_load:
            left += ast.iter_child_nodes(node)
