"""The contract of parts: every builtin keeps it, and each way to break it is found."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernbench.cli.main import main
from kernbench.common.config import ConfigModel
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.components.m_cpu import MCpu
from kernbench.components.passive import NocRouter
from kernbench.core.log import Kind
from kernbench.di.registry import REGISTRY
from kernbench.engine.thinking import ThinkingPart
from kernbench.probe.part_suite import CHECKS, check_part
from kernbench.topology.cube_spec import MCpuAttrs

REGISTERED = [(impl, kind) for impl in REGISTRY.known_impls() for kind in REGISTRY.kinds_of(REGISTRY.lookup(impl))]
# They are all on the machine that is made with one of them.
FAST = "builtin.m_cpu"


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, that YAML can name."""
    module = ModuleType("mine")
    module.__file__ = "mine.py"
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


@pytest.mark.parametrize(
    ("impl", "kind"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] != FAST), id=" at ".join(each)) for each in REGISTERED],
)
def test_every_registered_part_keeps_the_contract(impl: str, kind: str) -> None:
    found = [*check_part(impl, [kind])]
    assert [(each.kind, each.name, each.problem) for each in found] == [(kind, name, None) for name in CHECKS]


# --- what is found ----------------------------------------------------------------------------------------------------


class Deaf(NocRouter):
    def receive(self, message: object, transfer: object) -> None:
        """Nobody delivers anything to a router."""


class AnyKey(MCpu):
    class Attrs(MCpuAttrs, extra="allow"):
        pass


class NoAttrs(MCpu):
    class Attrs(ConfigModel):  # type: ignore[assignment]
        pass


class Silent(ThinkingPart):
    Attrs = MCpuAttrs
    handles_serially = True

    def run(self) -> Any:
        while True:
            yield self.inbox.get()


class SaysDone(Silent):
    """It does not launch anything."""

    def run(self) -> Any:
        while True:
            message = yield self.inbox.get()
            self.answer(message)


class NeverCloses(MCpu):
    """What it logs does not end."""

    def handle(self, message: object) -> None:
        log = self.machine.log
        log.open(log.part(self.node.id), Kind.RAW, self.clock.time, self.cause)
        super().handle(message)


class Guesses(MCpu):
    def handling_ns(self, message: object) -> float:
        return 5 + random.random()


class Remembers(MCpu):
    seen = 0

    def handling_ns(self, message: object) -> float:
        self.seen += 1
        return 5 + self.seen


WRONG = [
    (Deaf, "noc_router", "is wired", "nothing calls receive of mine.Part at this place"),
    (AnyKey, "m_cpu", "typed attributes", "its Attrs takes keys that it does not know"),
    (NoAttrs, "m_cpu", "is wired", "Attrs must be a subclass of MCpuAttrs"),
    (Silent, "m_cpu", "answers all requests", "m_cpu: has not answered the CubeOrder of request 0"),
    (SaysDone, "m_cpu", "conserves bytes", "elements are wrong, the first at"),
    (NeverCloses, "m_cpu", "keeps time", "m_cpu began at"),
    (Guesses, "m_cpu", "deterministic", "in a second run"),
    (Remembers, "m_cpu", "resets", "state is left"),
]


@pytest.mark.parametrize(("cls", "kind", "check", "said"), WRONG, ids=[each[0].__name__ for each in WRONG])
def test_what_breaks_it_is_found(mine: ModuleType, cls: type, kind: str, check: str, said: str) -> None:
    vars(mine)["Part"] = cls
    *before, last = check_part("mine:Part", [kind])
    assert all(each.ok for each in before)
    assert (last.kind, last.name) == (kind, check)
    assert said in (last.problem or "")


def test_kinds_are_those_of_its_base_unless_given(mine: ModuleType) -> None:
    vars(mine)["Part"] = type("Part", (MCpu,), {})
    assert next(check_part("mine:Part")).kind == "m_cpu"
    with pytest.raises(UnknownNameError, match="unknown kind of mine:Part 'sram'; there are: m_cpu"):
        next(check_part("mine:Part", ["sram"]))
    vars(mine)["Part"] = Silent
    with pytest.raises(InputError, match="mine:Part does not say which kind of part it is: give --kind, one of host"):
        next(check_part("mine:Part"))


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_line_a_check(mine: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    vars(mine)["Part"] = Silent
    assert main(["check-part", "mine:Part", "--kind", "m_cpu"]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:2] == ["ok    m_cpu  is wired", "ok    m_cpu  typed attributes"]
    assert lines[2].startswith("FAIL  m_cpu  answers all requests: deadlock at ")
    assert len(lines) == 3
    assert err == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Part", "there is no module 'nowhere'"),
        ("mine:Missing", "has no 'Missing'"),
        ("mine:number", "is not a class, but 3"),
        ("mine:Plain", "is not a component: derive it from kernbench.sim_engine.component.Component"),
        ("builtin.m_cpy", "unknown component 'builtin.m_cpy'"),
    ],
)
def test_what_is_no_part_is_bad_input(
    mine: ModuleType, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vars(mine).update(number=3, Plain=type("Plain", (), {}))
    assert main(["check-part", name]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_a_part_in_a_file_has_the_attrs_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "stalls.py").write_text(
        "from kernbench.components.m_cpu import MCpu\n"
        "class StallAttrs(MCpu.Attrs):\n"
        "    stall_ns: float = 3.0\n"
        "class Stalling(MCpu):\n"
        "    Attrs = StallAttrs\n"
        "    def handling_ns(self, message):\n"
        "        return super().handling_ns(message) + self.attrs_as(StallAttrs).stall_ns\n"
    )
    assert all(each.ok for each in check_part(f"{tmp_path}/stalls.py:Stalling"))
