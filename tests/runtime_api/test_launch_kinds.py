"""Kinds of launches: equal for launches that do the same work, None for kernels that have no value to compare."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kernbench.common.values import value
from kernbench.kernels import functions
from kernbench.kernels.elementwise import Expression, Input
from kernbench.messages.requests import LaunchStream
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.launch import Alike, prepare_launches
from kernbench.runtime_api.launch_kinds import kind_of

ACCESS = 64
BLOCK = 4


def kernel(x, y, n, *, tl, **options):
    """A kernel's signature."""


@value
class Scale:
    """A kernel as a value."""

    factor: int

    def run(self, *args, tl):
        """Do nothing."""


class Opaque:
    """An object without a value."""


def scaled_by(factor):
    def scaled(x, *, tl):
        return factor

    return scaled


def by_block(x, *, tl):
    return BLOCK


def kind(name, function, *args, alike=None, **kwargs):
    (launch,) = prepare_launches(name, function, args, kwargs)
    return kind_of(replace(launch, alike=alike), ACCESS)


def test_names_and_addresses_are_no_part_of_a_kind(torch):
    x, y = torch.zeros(8, name="x"), torch.zeros(8, name="y")
    assert kind("a", kernel, x, y, 3) == kind("b", kernel, y, x, 3) is not None


def test_the_place_within_a_memory_access_is_part_of_a_kind(torch):
    kinds = []
    for access_bytes in (ACCESS, 64 * ACCESS):
        launches = [prepare_launches("k", kernel, (x, x, 3), {})[0] for x in (torch.zeros(8), torch.zeros(8))]
        kinds.append([kind_of(launch, access_bytes) for launch in launches])
    places = [launch.tensors[0].shards[0].pa % (64 * ACCESS) for launch in launches]
    assert places[0] != places[1]
    assert kinds[0][0] == kinds[0][1]
    assert kinds[1][0] != kinds[1][1]


def test_the_stream_is_part_of_a_kind(torch):
    """A launch of one of two streams has half of the scratch of a PE."""
    (launch,) = prepare_launches("k", kernel, (torch.zeros(8), torch.zeros(8), 3), {})
    streams = None, LaunchStream(name="first", count=2), LaunchStream(name="first", count=3)
    kinds = [kind_of(replace(launch, message=replace(launch.message, stream=stream)), ACCESS) for stream in streams]
    assert len(set(kinds)) == 3


def test_a_tensor_that_is_two_arguments_makes_another_kind(torch):
    x, y = torch.zeros(8), torch.zeros(8)
    assert kind("a", kernel, x, x, 3) != kind("a", kernel, x, y, 3)


@pytest.mark.parametrize(
    "change",
    [{"n": 4}, {"n": 3.0}, {"n": True}, {"shape": 4}, {"dtype": "f16"}, {"dp": DPPolicy("replicate", "row_wise")}],
    ids=str,
)
def test_values_shapes_types_and_places_are_parts_of_a_kind(torch, change):
    shape, n = change.pop("shape", 8), change.pop("n", 3)
    x, y = torch.zeros(8), torch.zeros(shape, **change)
    assert kind("a", kernel, x, x, 3) != kind("a", kernel, x, y, n)


def test_functions_compare_by_code_and_captured_values(torch):
    x = torch.zeros(8)
    assert kind("k", scaled_by(2), x) == kind("k", scaled_by(2), x) != kind("k", scaled_by(3), x)
    assert kind("k", partial(kernel, n=1), x, x) == kind("k", partial(kernel, n=1), x, x)
    assert kind("k", partial(kernel, n=1), x, x) != kind("k", partial(kernel, n=2), x, x)
    assert kind("k", Scale(2).run, x) == kind("k", Scale(2).run, x) != kind("k", Scale(3).run, x)


def test_globals_of_a_program_are_parts_of_its_kinds(torch, monkeypatch):
    x = torch.zeros(8)
    before = kind("k", by_block, x)
    monkeypatch.setitem(globals(), "BLOCK", 8)
    assert kind("k", by_block, x) != before


def test_arrays_compare_by_their_elements(torch):
    x = torch.zeros(8)
    first, same, other = (kind("k", scaled_by(np.array(numbers)), x) for numbers in ([1, 2], [1, 2], [1, 3]))
    assert first == same != other


def test_a_kernel_with_an_object_without_value_has_no_kind(torch):
    assert kind("k", scaled_by(Opaque()), torch.zeros(8)) is None
    assert kind("k", scaled_by(np.array([Opaque()])), torch.zeros(8)) is None


def test_operands_stand_for_the_tensors_of_the_launch(torch):
    x, operands = torch.zeros(8), [(Opaque(), Opaque()), (Opaque(), Opaque())]
    kinds = [kind("k", kernel, x, x, 1, alike=Alike(scaled_by([a, b]), (a, b))) for a, b in operands]
    assert kinds[0] == kinds[1] is not None
    a, b = operands[0]
    assert kind("k", kernel, x, x, 1, alike=Alike(scaled_by([b, a]), (a, b))) != kinds[0]


def test_an_object_that_contains_itself_ends():
    loop: list[object] = []
    loop.append(loop)
    assert scaled_by(loop) is not None


def kinds_of_numbers(torch, function, *numbers):
    """Return the kinds of one function with each of the numbers."""
    x = torch.zeros(8)
    expressions = [Expression.of(function, Input(0), number) for number in numbers]
    return [kind("k", kernel, x, x, 1, alike=Alike(expression)) for expression in expressions]


def test_numbers_that_are_only_computed_with_are_no_part_of_a_kind(torch):
    half, third, one, negative = kinds_of_numbers(torch, functions.divide, 0.5, 0.3, 1.0, -0.5)
    assert half == third
    assert len({half, one, negative}) == 3


def test_numbers_that_decide_the_operations_are_part_of_a_kind(torch):
    assert len(set(kinds_of_numbers(torch, functions.power, 2.0, 3.0, 0.5))) == 3
    assert len(set(kinds_of_numbers(torch, functions.divide, 2, 3))) == 2
