"""The contract of parts at ``cube.extra`` and ``pe.extra``: memories are used, what breaks it is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from kernbench.di.part import PartAttrs
from kernbench.di.registry import Registry
from kernbench.engine.thinking import ThinkingPart
from kernbench.probe import part_suite
from kernbench.probe.part_suite import CHECKS, check_part
from kernbench.sim_engine.component import Memory, MemoryAccess


class Steady(Memory):
    def serve(self, access: MemoryAccess) -> float:
        return 7.0


class Idle(ThinkingPart):
    def run(self) -> Any:
        while True:
            yield self.inbox.get()


class Silent(Memory):
    def serve(self, access: MemoryAccess) -> Iterator[Any]:
        yield self.env.event()


class AnyKey(Steady):
    class Attrs(PartAttrs, extra="allow"):
        pass


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, that YAML can name."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Steady, Idle])
@pytest.mark.parametrize("kind", ["cube.extra", "pe.extra"])
def test_it_is_kept(mine: ModuleType, cls: type, kind: str) -> None:
    vars(mine)["Part"] = cls
    found = [*check_part("mine:Part", [kind])]
    assert [(each.kind, each.name, each.problem) for each in found] == [(kind, name, None) for name in CHECKS]


@pytest.mark.parametrize(
    ("cls", "check", "said"),
    [
        (AnyKey, "typed attributes", "its Attrs accepts unknown keys"),
        (Silent, "answers all requests", "sip0.cube0.checked: has not answered"),
        (type("Unsaid", (Memory,), {}), "answers all requests", "Unsaid must define serve(access)"),
        (type("Unsaid", (ThinkingPart,), {}), "is wired", "Unsaid has no run()"),
    ],
)
def test_what_breaks_it_is_found(mine: ModuleType, cls: type, check: str, said: str) -> None:
    vars(mine)["Part"] = cls
    *before, last = check_part("mine:Part", ["cube.extra"])
    assert all(each.ok for each in before)
    assert last.name == check
    assert said in (last.problem or "")


def test_one_of_a_kind_of_its_own_is_checked_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    for name in part_suite.REGISTRY.known_impls():
        cls = part_suite.REGISTRY.lookup(name)
        registry.register(name, kind=part_suite.REGISTRY.kinds_of(cls))(cls)
    registry.register("mine.steady", kind="steady", new=True)(Steady)
    for module in ("kernbench.probe.part_suite", "kernbench.topology.builder", "kernbench.engine.part_check"):
        monkeypatch.setattr(sys.modules[module], "REGISTRY", registry)
    monkeypatch.setattr("kernbench.engine.machine.REGISTRY", registry)
    first = next(check_part("mine.steady"))
    assert (first.kind, first.name, first.problem) == ("steady", "is wired", None)
