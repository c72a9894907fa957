"""The table of operators: each operator of PyTorch has a row or is a form of one, and each row is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch._decomp import core_aten_decompositions, decomposition_table  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from kernbench.frontends.torch.dispatch import TABLE, way_of  # noqa: E402
from kernbench.frontends.torch.storage import TorchOperator  # noqa: E402
from kernbench.frontends.torch.ways import decomposition, is_composite, is_view  # noqa: E402

aten = torch.ops.aten


def operators() -> Iterator[tuple[str, str, TorchOperator]]:
    """Yield the packet, the overload and the operator of everything that PyTorch's dispatcher has under aten."""
    for full_name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 - the dispatcher has no public list
        namespace, _, name = full_name.partition("::")
        if namespace == "aten":
            packet, _, overload = name.partition(".")
            yield packet, overload or "default", getattr(getattr(aten, packet), overload or "default")


def is_form(packet: str, operator: TorchOperator) -> bool:
    """Return whether an operator is a form of another: in place, with out=, on lists, or on other layouts."""
    has_out = any(argument.is_out for argument in operator._schema.arguments)  # noqa: SLF001
    in_place = packet.endswith("_") and not packet.endswith("__")
    other_layout = packet.lstrip("_").startswith(("nested_", "sparse_", "jagged_"))
    return has_out or in_place or other_layout or packet.startswith("_foreach_")


def test_every_operator_has_a_row_or_is_a_form() -> None:
    missing = [
        f"{packet}.{overload}"
        for packet, overload, operator in operators()
        if not is_form(packet, operator) and packet not in TABLE and f"{packet}.{overload}" not in TABLE
    ]
    assert missing == []


def test_every_row_is_that_of_an_operator() -> None:
    names = {name for packet, overload, _ in operators() for name in (packet, f"{packet}.{overload}")}
    assert sorted(set(TABLE) - names) == []


@pytest.mark.parametrize("kind", ["view", "decomposition", "host"])
def test_rows_say_what_pytorch_has(kind: str) -> None:
    decompositions = {**decomposition_table, **core_aten_decompositions()}
    forms = {packet for packet, _, operator in operators() if is_form(packet, operator)}
    wrong = []
    for packet, overload, operator in operators():
        row = TABLE.get(f"{packet}.{overload}") or TABLE.get(packet)
        if row is None or row.kind != kind or packet in forms or is_form(packet, operator):
            continue
        has_parts = is_composite(operator) or operator in decompositions
        views = is_view(operator) or packet == "_unsafe_view"
        true = {"view": views, "decomposition": has_parts and not views, "host": not (has_parts or views)}[kind]
        if not true:
            wrong.append(f"{packet}.{overload}")
    # The host draws random numbers, and PyTorch composes windows of operators of the host.
    drawn = ("rand", "tril_indices", "triu_indices", "window")
    assert [name for name in wrong if kind != "host" or not any(word in name for word in drawn)] == []


def test_forms_follow_their_operator() -> None:
    assert way_of(aten.add_.Tensor) is TABLE["add"]
    assert way_of(aten.add.out).kind == "another form"
    assert way_of(aten._foreach_add.Scalar).kind == "list"  # noqa: SLF001
    assert way_of(aten.cumsum_.default).kind == "another form"
    assert way_of(aten.squeeze_.dim).kind == "view"
    assert way_of(aten._nested_view_from_buffer.default).kind == "refused"  # noqa: SLF001


def test_parts_of_an_operator_are_nested_in_one_rank_only() -> None:
    answers: list[object] = []

    def parts(depth: int) -> int:
        if depth == 0:
            answers.append(way.run(aten.add.Tensor, (1,), {}))  # nested: the parts call their operator
            answers.append(Context().run(way.run, aten.add.Tensor, (2,), {}))  # another rank, meanwhile
        return depth

    way = decomposition(parts)
    assert way.run(aten.add.Tensor, (0,), {}) == 0
    assert answers == [NotImplemented, 2]
    assert way.run(aten.add.Tensor, (3,), {}) == 3
