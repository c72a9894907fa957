"""The contract of parts: every builtin keeps it, and each way to break it is found."""

from __future__ import annotations

import json
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
from kernbench.probe import part_suite
from kernbench.probe.part_suite import CHECKS, PACES, Subject, check_part
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
    (AnyKey, "m_cpu", "typed attributes", "its Attrs accepts unknown keys"),
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


# --- parts that pace --------------------------------------------------------------------------------------------------


class BucketAttrs(NocRouter.Attrs):  # type: ignore[name-defined,misc]
    rate_gbs: float = 16.0


class HoldsHeads(NocRouter):
    """A token bucket of heads: it holds all bytes of a transfer, and so does the next."""

    Attrs = BucketAttrs
    free_ns = 0.0

    def reset(self) -> None:
        super().reset()
        self.free_ns = self.now_ns

    def hold_ns(self, transfer: Any) -> float:
        begin = max(self.now_ns, self.free_ns)
        self.free_ns = begin + transfer.nbytes / 16
        return self.free_ns - self.now_ns


class HoldsNothing(NocRouter):
    Attrs = BucketAttrs

    def hold_ns(self, transfer: Any) -> float:
        return 0.0


class HalfAsFast(NocRouter):
    Attrs = BucketAttrs

    def hold_packet_ns(self, packet: Any) -> float:
        return float(packet.nbytes / 8)


class HoldsPackets(NocRouter):
    Attrs = BucketAttrs

    def hold_packet_ns(self, packet: Any) -> float:
        return float(packet.nbytes / 16)


class Number(NocRouter):
    rate_gbs = 16.0


class Alternates(NocRouter):
    """Nothing for 500 ns, 16 GB/s for 500."""

    def rate_gbs(self, now_ns: float) -> tuple[float, float]:  # type: ignore[override]
        turn = now_ns // 500
        return 16.0 * (turn % 2), 500 * (turn + 1)


class LaterThanItSays(Alternates):
    def hold_packet_ns(self, packet: Any) -> float:
        return 200.0


class Delays(NocRouter):
    """It says no rate, and delays."""

    def hold_ns(self, transfer: Any) -> float:
        return 30.0


SAYS_16 = "it says 16 GB/s"


@pytest.mark.parametrize(
    ("cls", "problem", "note"),
    [
        (Number, None, f"4 in series: 64 B 16 GB/s, 4 KiB 16 GB/s, 1 MiB 16 GB/s; {SAYS_16}"),
        (HoldsPackets, None, f"1 MiB 16 GB/s; {SAYS_16}"),
        (Alternates, None, "1 MiB 8 GB/s; it says a rate that changes"),
        (Delays, None, "1 MiB 129 GB/s; it says no rate"),
        (NocRouter, None, "1 MiB 128 GB/s; it says no rate"),
        (
            HoldsHeads,
            f"4 KiB through 4 in series took 1,123.846 ns, beside the way 3.94 GB/s; {SAYS_16}, which is ",
            "",
        ),
        (HoldsNothing, f"1 MiB through 4 in series took 8,275.846 ns, beside the way 128 GB/s; {SAYS_16}, which", ""),
        (HalfAsFast, f"{SAYS_16}, which is", ""),
        (LaterThanItSays, "it says a rate that changes, which is", ""),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_streams_run_at_the_rate_that_a_part_says(mine: ModuleType, cls: type, problem: str | None, note: str) -> None:
    vars(mine)["Part"] = cls
    subject = Subject("mine.Part", "noc_router")
    found = next(CHECKS[PACES](subject), None)
    assert (found is None) == (problem is None), found
    assert (problem or "") in (found or "")
    assert note in subject.notes[PACES]


@pytest.mark.parametrize(
    ("impl", "kind", "count"),
    [
        ("builtin.xbar", "xbar", 2),
        ("builtin.ucie", "sip_port", 2),
        ("builtin.ucie", "ucie", 4),
        ("builtin.pcie_ep", "pcie_ep", 2),
        ("builtin.noc_router", "io_noc", 2),
        ("builtin.switch", "switch", 1),
        ("builtin.sram", "sram", 1),
        ("builtin.sram", "cube.extra", 1),
        ("builtin.pe_dma", "pe_dma", 1),
        ("builtin.host", "host", 1),
    ],
)
def test_parts_stand_in_series_where_a_machine_has_them_so(impl: str, kind: str, count: int) -> None:
    subject = Subject(impl, kind)
    assert next(CHECKS[PACES](subject), None) is None
    assert subject.notes[PACES].startswith(f"{count} in series: 64 B ")


def test_engines_of_a_pe_have_no_links_to_pace() -> None:
    subject = Subject("builtin.pe_gemm", "pe_gemm")
    assert next(CHECKS[PACES](subject), None) is None
    assert not subject.notes


@pytest.mark.parametrize(("cls", "code"), [(Number, 0), (HoldsHeads, 1)])
def test_the_command_says_how_fast_it_is(
    mine: ModuleType, cls: type, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(mine)["Part"] = cls
    monkeypatch.setattr(part_suite, "CHECKS", {PACES: CHECKS[PACES]})
    assert main(["check-part", "mine:Part", "--kind", "noc_router"]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{('ok  ', 'FAIL')[code]}  noc_router  paces as it says: 4")
    assert line.endswith("it says 16 GB/s") == (code == 0)
    assert main(["check-part", "mine:Part", "--kind", "noc_router", "--json"]) == code
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert (check["ok"], check["problem"] is None) == (code == 0, code == 0)
    assert check["note"].startswith("4 in series: ")


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
