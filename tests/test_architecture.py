"""Tests that docs/architecture.md shows what a load does, and names what its recipes need."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import kernbench
from kernbench.components.dispatch import Dispatcher
from kernbench.core.log import LAST_RECORD, Kind
from kernbench.messages.commands import OPCODE_WORDS, Opcode
from kernbench.numerics.compute import RULES
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.triton_emu.tl_context import TLContext as Tl

ROOM = Path(kernbench.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def files_of_a_load() -> list[str]:
    """Return the files that the second load of a kernel goes through, in the order in which it comes to them."""
    files: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOM):
            files.append(path.relative_to(ROOM).as_posix())

    def kernel(t: int, n: int, *, tl: Tl) -> None:
        tl.wait(tl.load(t, n, "f16"))
        sys.setprofile(note)
        tl.wait(tl.load(t, n, "f16"))
        sys.setprofile(None)

    def program(torch: Any) -> None:
        t = torch.zeros(1, 32, dtype="f16", dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=1), name="t")
        torch.launch("loads", kernel, t, 32)

    run_bench(bench_fn=program).raise_for_status()
    return list(dict.fromkeys(files))


def test_picture_of_a_load_has_the_files_it_goes_through() -> None:
    section = PAGE.read_text().split("## The way of a load")[1].split("\n## ")[0]
    boxes = [re.findall(r"^│ (\S+\.py) ", box, re.MULTILINE) for box in section.split("┌─")[1:]]
    drawn = [name for box in boxes for name in box]
    travelled = [name for name in files_of_a_load() if name in drawn]
    assert len(drawn) > 12
    assert set(drawn) - {"transport/timing.py"} == set(travelled)  # its closed form was kept from the first load
    entries = [box[0] for box in boxes]
    assert [name for name in travelled if name in entries] == entries


def test_recipe_of_a_command_names_what_there_is() -> None:
    recipe = PAGE.with_name("add-an-operator.md").read_text().split("## A command of the PE\n")[1].split("\n## ")[0]
    places = re.findall(r"((?:`\w+`(?:, | or | and below it )?)+) in `(\S+\.py)`", recipe)
    named = {(name, file) for names, file in places for name in re.findall(r"\w+(?=`)", names)}
    assert len(named) >= 9
    missing = [(name, file) for name, file in named if not defines((ROOM / file).read_text(), name)]
    assert not missing


def defines(text: str, name: str) -> bool:
    """Return True when a module with this text has a class or a table of that name, at its top or in a class."""
    return re.search(rf"^ *(class {name}\b|{name}(:.*)? = )", text, re.MULTILINE) is not None


def test_tables_of_commands_have_every_opcode_and_kind() -> None:
    assert len(OPCODE_WORDS) == len(Opcode)
    assert set(Dispatcher.STARTED_BY) == set(Opcode) - {Opcode.RECEIVE}  # which is done when its message is there
    assert set(RULES) == {kind.label for kind in Kind if kind <= LAST_RECORD}
