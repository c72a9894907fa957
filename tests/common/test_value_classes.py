"""``@value`` and ``@state``: what a dataclass does, they do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.values import state, value

T = TypeVar("T")
Decorator = Callable[[type], type]


@value
class Point:
    """Two numbers, one with a default."""

    LIMIT: ClassVar[int] = 9

    x: int
    y: int = 2

    @property
    def norm(self) -> int:
        """The sum of both."""
        return abs(self.x) + abs(self.y)


@value(kw_only=True)
class Labelled(Point):
    """A point with a name; of the last two neither counts in comparisons."""

    name: str
    tags: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(self.name))


@value(guarded=False)
class Fast:
    """What is compared by the million."""

    x: int
    y: str
    z: tuple[int, ...] = ()


@value(eq=False, guarded=False)
class Message:
    """What is made by the million."""

    op: int
    part: int = 0


@value(eq=False, guarded=False, kw_only=True)
class LongMessage(Message):
    """With a field more."""

    data: str


@state
class Counter:
    """What changes."""

    count: int = 0
    seen: list[int] = field(default_factory=list)


@value(order=True)
class Version:
    """What has an order."""

    major: int
    minor: int
    label: str = field(default="", compare=False)


@value
class Lonely:
    """No fields."""


@value
class Node:
    """What may hold itself."""

    inside: list[Any]


@value
class Box(Generic[T]):
    """A type with a parameter."""

    content: T


def twins(fast: Decorator, plain: Decorator) -> tuple[type, type]:
    """The same class made by both."""

    def declare() -> type:
        class Twin:
            a: int
            b: str = "b"
            c: tuple[int, ...] = field(default=(), repr=False)
            d: int = field(default=0, compare=False)
            e: int = field(default=0, hash=False)
            f: int = field(default=7, init=False)
            g: int = field(default=1, kw_only=True)

        return Twin

    return fast(declare()), plain(declare())


PAIRS = {
    "value": (value, dataclass(frozen=True, slots=True)),
    "value, ordered": (value(order=True), dataclass(frozen=True, slots=True, order=True)),
    "value, by keyword": (value(kw_only=True), dataclass(frozen=True, slots=True, kw_only=True)),
    "value by identity": (value(eq=False), dataclass(frozen=True, slots=True, eq=False)),
    "value, unguarded": (value(guarded=False), dataclass(slots=True, unsafe_hash=True)),
    "message": (value(eq=False, guarded=False), dataclass(slots=True, eq=False)),
    "state": (state, dataclass(slots=True)),
    "state by identity": (state(eq=False), dataclass(slots=True, eq=False)),
}
pairs = pytest.mark.parametrize(("fast", "plain"), [twins(*pair) for pair in PAIRS.values()], ids=list(PAIRS))
contents = st.fixed_dictionaries(
    {"a": st.integers(0, 2)},
    optional={
        "b": st.sampled_from("bc"),
        "c": st.sampled_from([(), (1,), (1, 2)]),
        "d": st.integers(0, 1),
        "e": st.integers(0, 1),
        "g": st.integers(0, 1),
    },
)


def outcome(act: Callable[[], object]) -> object:
    """What it gives, or the error that it raises."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


@pairs
@given(first=contents, second=contents)
def test_a_class_behaves_as_its_dataclass(
    fast: type, plain: type, first: dict[str, Any], second: dict[str, Any]
) -> None:
    def told(cls: type) -> list[object]:
        one, other = cls(**first), cls(**second)
        keyed = outcome(lambda: hash(one) == hash(other)) if cls.__eq__ is not object.__eq__ else None
        return [
            repr(one),
            dataclasses.asdict(one),
            dataclasses.astuple(one),
            one == other,
            one != other,
            one == cls(**first),
            one == tuple(first),
            keyed,
            outcome(lambda: hash(one)) if keyed is not None else None,
            outcome(lambda: one < other),
            outcome(lambda: one >= other),
            repr(dataclasses.replace(one, a=5)),
            repr(copy.copy(one)),
            repr(copy.deepcopy(one)),
        ]

    assert told(fast) == told(plain)


@pairs
@pytest.mark.parametrize(
    ("positional", "keywords"),
    [((), {}), ((1, "b", (), 0, 0, 1, 2), {}), ((1,), {"wrong": 1}), ((1,), {"a": 1}), ((1,), {"f": 1})],
    ids=["missing", "too many", "unknown", "twice", "not taken"],
)
def test_wrong_arguments_are_worded_as_python_words_them(
    fast: type, plain: type, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    found = outcome(lambda: fast(*positional, **keywords))
    assert found == outcome(lambda: plain(*positional, **keywords))
    assert found[0] is TypeError  # type: ignore[index]


@pairs
def test_a_class_describes_itself_as_its_dataclass(fast: type, plain: type) -> None:
    def told(cls: type) -> list[object]:
        kinds = [
            (f.name, f.type, f.default, f.init, f.repr, f.compare, f.hash, f.kw_only) for f in dataclasses.fields(cls)
        ]
        signature = inspect.signature(cls)
        return [
            kinds,
            dataclasses.is_dataclass(cls),
            vars(cls)["__match_args__"],
            vars(cls)["__slots__"],
            list(signature.parameters.values()),
            vars(cls)["__dataclass_params__"].frozen,
            vars(cls).get("__hash__", "inherited") is None,
        ]

    assert told(fast) == told(plain)


@pairs
def test_a_dataclass_inherits_from_it(fast: type, plain: type) -> None:
    guarded = vars(plain)["__dataclass_params__"].frozen

    def heir(base: type) -> type:
        @dataclass(frozen=guarded, kw_only=True, slots=True)
        class Heir(base):  # type: ignore[misc]
            more: int = 3

        return Heir

    assert repr(heir(fast)(a=1)) == repr(heir(plain)(a=1))
    assert [f.name for f in dataclasses.fields(heir(fast))] == [f.name for f in dataclasses.fields(heir(plain))]


def test_a_guarded_field_refuses_assignment_and_deletion() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match=r"^cannot assign to field 'x'$"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match=r"^cannot delete field 'y'$"):
        del point.y
    with pytest.raises(FrozenInstanceError, match=r"^cannot assign to field 'z'$"):
        point.z = 3  # type: ignore[attr-defined]
    assert point == Point(1)


def test_a_plain_heir_of_a_guarded_class_has_attributes_of_its_own() -> None:
    class Heir(Point):
        pass

    heir = Heir(1)
    heir.extra = 4  # type: ignore[attr-defined]
    del heir.extra  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match=r"^cannot assign to field 'x'$"):
        heir.x = 3  # type: ignore[misc]
    assert heir != Point(1)


def test_what_is_not_a_field_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        Counter().other = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        Message(1).other = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "thing",
    [
        Point(1),
        Labelled(3, name="a", tags=["b"], note="c"),
        Fast(1, "a", (2,)),
        Counter(2, [1]),
        Version(1, 2, "x"),
        Lonely(),
        Box([1]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_and_copies_are_equal(thing: object, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(thing, protocol)) == thing
    assert copy.copy(thing) == copy.deepcopy(thing) == thing


def test_a_pickle_has_what_is_not_compared() -> None:
    thing = Labelled(3, name="ab", note="c")
    again = pickle.loads(pickle.dumps(thing))
    assert (again.note, again.size) == ("c", 2)


def test_a_message_is_only_itself() -> None:
    message = LongMessage(1, data="a")
    again = pickle.loads(pickle.dumps(message))
    assert dataclasses.asdict(again) == {"op": 1, "part": 0, "data": "a"}
    assert again != message
    assert message in {message}


def test_fields_are_inherited_in_order() -> None:
    assert [f.name for f in dataclasses.fields(Labelled)] == ["x", "y", "name", "tags", "note", "size"]
    assert repr(Labelled(1, name="a")) == "Labelled(x=1, y=2, name='a', tags=[], size=1)"
    assert Labelled(1, name="a").norm == 3
    assert Point.LIMIT == 9


def test_a_default_factory_makes_each_its_own() -> None:
    Counter().seen.append(1)
    assert Counter().seen == []


def test_match_patterns() -> None:
    match Labelled(1, 5, name="a"):
        case Labelled(x, y, name=name):
            assert (x, y, name) == (1, 5, "a")
        case _:
            pytest.fail("no case")


def test_what_holds_itself_can_be_shown() -> None:
    node = Node([])
    node.inside.append(node)
    assert repr(node) == "Node(inside=[...])"


def test_what_the_author_writes_stays() -> None:
    @value
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), Own(1) == 3, hash(Own(1))) == ("own", True, 7)


def test_own_equality_keeps_the_hash_of_fields() -> None:
    @value
    class Own:  # noqa: PLW1641 - the decorator gives it one
        x: int

        def __eq__(self, other: object) -> bool:
            return True

    assert hash(Own(3)) == hash((3,))


def test_an_abstract_class_stays_abstract() -> None:
    @value
    class Shape(ABC):
        sides: int

        @abstractmethod
        def area(self) -> int: ...

    @value
    class Square(Shape):
        def area(self) -> int:
            return 4

    assert Square(4).area() == 4
    with pytest.raises(TypeError, match="abstract"):
        Shape(4)  # type: ignore[abstract]


def test_a_list_is_no_default() -> None:
    with pytest.raises(ValueError, match=r"^field x: a list is no default, use default_factory$"):

        @value
        class Wrong:
            x: list[int] = []  # noqa: RUF012 - it is the mistake


def test_one_function_a_class_is_compiled() -> None:
    # The rest is shared: this is what makes a start fast.
    assert vars(Point)["__repr__"] is vars(Labelled)["__repr__"] is vars(Counter)["__repr__"]
    assert vars(Point)["__setattr__"] is vars(Version)["__setattr__"]
    assert Fast.__eq__.__code__.co_filename == Fast.__init__.__code__.co_filename == "<string>"
    assert Point.__eq__.__code__.co_filename != "<string>"


def test_methods_are_compiled_before_their_first_use() -> None:
    @value(guarded=False)
    class First:
        x: int

    @value
    class Second(First):
        y: int = 3

    def is_compiled(cls: type, name: str) -> bool:
        return inspect.isfunction(vars(cls)[name])

    assert not any(is_compiled(First, name) for name in ("__init__", "__eq__", "__hash__"))
    assert list(inspect.signature(Second).parameters) == ["x", "y"]
    assert is_compiled(Second, "__init__")
    assert not is_compiled(First, "__init__")
    blank = First.__new__(First)
    First.x.__set__(blank, 4)  # type: ignore[attr-defined]
    assert blank == First(4)
    assert hash(blank) == hash(First(4))
    assert all(is_compiled(First, name) for name in ("__init__", "__eq__", "__hash__"))
    assert Second(1) == Second(1, 3)
    assert Second(1) != Second(1, 4)
