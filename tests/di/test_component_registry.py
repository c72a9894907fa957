"""The registry: names, kinds, dotted paths, and what it says when there is no such class."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernbench.common.errors import InputError, UnknownNameError
from kernbench.di.part import KINDS, Part
from kernbench.di.registry import Registry, known_kinds, lookup


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def user_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in {"", str(tmp_path)}])
    return tmp_path


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text("from kernbench.di.part import Part\n" + text)


def test_a_registered_name_is_found(registry: Registry) -> None:
    @registry.register("demo.xbar", kind="xbar")
    class Xbar(Part):
        pass

    assert registry.lookup("demo.xbar") is Xbar
    assert registry.known_impls() == ("demo.xbar",)
    assert registry.kinds_of(Xbar) == ("xbar",)


def test_a_class_may_stand_for_several_kinds(registry: Registry) -> None:
    @registry.register("demo.router", kind=("noc_router", "io_noc"))
    class Router(Part):
        pass

    class SlowRouter(Router):
        pass

    assert registry.kinds_of(SlowRouter) == ("noc_router", "io_noc")
    assert registry.kinds_of(Part) == ()


def test_a_duplicate_names_both_classes(registry: Registry) -> None:
    registry.register("demo.a", kind="xbar")(type("First", (Part,), {}))
    with pytest.raises(InputError, match=r"two components are called 'demo\.a': .*First and .*Second"):
        registry.register("demo.a", kind="xbar")(type("Second", (Part,), {}))


def test_an_unknown_kind_lists_the_kinds(registry: Registry) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown component kind 'crossbar'; there are: host, switch"):
        registry.register("demo.a", kind="crossbar")


def test_an_unknown_name_lists_the_names(registry: Registry) -> None:
    registry.register("demo.xbar", kind="xbar")(type("Xbar", (Part,), {}))
    for slip in ("demo.xbra", "xbar"):
        with pytest.raises(UnknownNameError) as caught:
            registry.lookup(slip)
        assert caught.value.names == ("demo.xbar",)
        assert slip in str(caught.value)


def test_a_class_beside_the_user_is_imported_by_path(registry: Registry, user_dir: Path) -> None:
    write_module(user_dir, "beside_me", "class Mine(Part):\n    pass\n")
    found = registry.lookup("beside_me.Mine")
    assert found.__name__ == "Mine"
    assert str(user_dir) not in sys.path


def test_a_package_may_share_its_first_word_with_registered_names(registry: Registry, user_dir: Path) -> None:
    registry.register("shared_word.fast", kind="xbar")(type("Fast", (Part,), {}))
    write_module(user_dir, "shared_word", "class Mine(Part):\n    pass\n")
    assert registry.lookup("shared_word.Mine").__name__ == "Mine"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", r"component '\.': a dotted path has a name on each side of a dot, like my_pkg\.mine\.name"),
        (".Router", r"component '\.Router': a dotted path has a name on each side of a dot"),
        ("my_pkg..Router", r"component 'my_pkg\.\.Router': a dotted path has a name on each side of a dot"),
        ("no_such_pkg.mod.Cls", r"component 'no_such_pkg\.mod\.Cls': there is no module 'no_such_pkg'; looked among"),
        ("parts_a.Absent", r"module 'parts_a' \(.*parts_a\.py\) has no 'Absent'"),
        ("parts_a.number", r"is not a class, but 3"),
        ("parts_a.Plain", r"is not a component: derive it from kernbench\.sim_engine\.component\.Component"),
        ("parts_broken.Mine", r"importing 'parts_broken' failed: ZeroDivisionError: division by zero"),
        ("parts_needy.Mine", r"importing 'parts_needy' needs 'no_such_dependency', which is missing"),
    ],
)
def test_a_path_that_leads_nowhere_says_why(registry: Registry, user_dir: Path, path: str, expected: str) -> None:
    write_module(user_dir, "parts_a", "number = 3\nclass Plain:\n    pass\n")
    write_module(user_dir, "parts_broken", "1 / 0\n")
    write_module(user_dir, "parts_needy", "import no_such_dependency\n")
    with pytest.raises(InputError, match=expected):
        registry.lookup(path)


def test_a_group_of_entry_points_may_be_empty() -> None:
    assert Registry("kernbench.tests.no_such_group").known_impls() == ()


def test_the_global_registry_knows_every_kind_and_complains_like_any_other() -> None:
    assert known_kinds() == KINDS
    with pytest.raises(InputError):
        lookup("no_such_component")
