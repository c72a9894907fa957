"""Launches of front ends, which run a user's program on PEs that they name; and tensors smaller than the machine."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_support import machine
from kernbench.common.errors import InputError, KernelError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import KernelRef
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

PES = [(0, 0, 5), (0, 1, 2), (0, 0, 1)]
SOURCE = """
def add_one(language, x, program):
    value = language.load(x + 4 * program, 1)
    if program == 7:
        language.store(x, "nothing")
    if program == 8:
        value / {}["missing"]
    language.store(x + 4 * program, value + 1)
"""


class Language:
    """What the user's program gets: it calls ``tl`` in this file, not in the user's."""

    def __init__(self, tl: Any) -> None:
        self.tl = tl

    def load(self, at: int, n: int) -> Any:
        return self.tl.load(at, n, "f32")

    def store(self, at: int, value: Any) -> None:
        self.tl.store(at, value)


@pytest.fixture
def user(tmp_path: Path) -> tuple[str, Callable[..., object]]:
    """A program of the user's, in a file of its own."""
    file = str(tmp_path / "program.py")
    Path(file).write_text(SOURCE)
    names: dict[str, Any] = {}
    exec(compile(SOURCE, file, "exec"), names)
    return file, names["add_one"]


def front_end(user: tuple[str, Callable[..., object]], programs: int, pes: list[Any] = PES) -> KernelRef:
    """Runs ``programs`` of the user's program, in turn on ``pes``."""
    file, function = user

    def run(*pointers: int, tl: Any) -> None:
        me = pes.index((tl.site.sip, tl.site.cube, tl.site.pe))
        for program in range(me, programs, len(pes)):
            function(Language(tl), *pointers, program)

    return KernelRef(name="add_one", function=run, file=file)


def test_programs_run_on_the_pes_that_are_named(user: Any) -> None:
    engine = GraphEngine(machine())
    with RuntimeContext[Any](engine) as torch:
        x = torch.zeros(7)  # on one PE, which takes no part
        torch.launch_on("add", PES, front_end(user, 7), x)
        assert x.numpy().tolist() == [1] * 7
        assert {each.line for each in engine.op_log if each.launch_id >= 0 and each.parent < 0} == {3, 8}
        assert set(torch.traces[-2].pe_exec_ns) == set(PES)


@pytest.mark.parametrize(
    ("programs", "kind", "line", "words"),
    [(8, KernelError, 5, r"program\.py:5: 'nothing' is not a handle"), (9, KeyError, 7, "missing")],
)
def test_errors_are_at_the_line_of_the_users_program(
    user: Any, programs: int, kind: type[Exception], line: int, words: str
) -> None:
    pes = [(0, 0, 0)] if programs == 8 else [(0, 0, 0), (0, 0, 1)]  # of two the first has the even programs
    with RuntimeContext[Any](GraphEngine(machine())) as torch:
        x = torch.zeros(9)
        ref = front_end(user, programs, pes)
        with pytest.raises(kind, match=words) as caught:
            torch.launch_on("add", pes[:1], ref, x)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(last.filename).name, last.lineno) == ("program.py", line)


@pytest.mark.parametrize(
    ("pes", "words"),
    [
        ([], r"PEs are \(sip, cube, pe\), each once, of 2 SIPs of 16 cubes of 8 PEs; found \[\]"),
        ([(0, 0, 0), (0, 0, 0)], "each once"),
        ([(0, 16, 0)], "found"),
        ([(0, 0, 0), (1, 0, 0)], "its PEs must be of one SIP, .* found PEs of sip0, sip1"),
        ([(1, 0, 0)], "found PEs of sip1, and x on sip0"),
    ],
)
def test_pes_that_cannot_run_it_are_refused(user: Any, pes: list[tuple[int, int, int]], words: str) -> None:
    with RuntimeContext[Any](GraphEngine(machine())) as torch:
        x = torch.zeros(4, name="x")
        with pytest.raises(InputError, match=words):
            torch.launch_on("add", pes, front_end(user, 1), x)


def test_tensors_with_fewer_elements_than_parts() -> None:
    """Five rows over 16 cubes of 8 PEs, then copied, filled, computed with, and read back."""
    over_all, over_pes = DPPolicy("row_wise", "column_wise"), DPPolicy("replicate", "row_wise", num_cubes=2)

    def double(x: int, *, tl: Any) -> None:
        if tl.program_id(1) == 0 and tl.program_id(0) == 0:
            tl.store(x, tl.load(x, 15, "f32") * 2)

    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    with RuntimeContext[Any](GraphEngine(machine())) as torch:
        x = torch.tensor(values, dp=over_all, name="x")
        assert x.layout.owners == tuple((0, cube, pe) for cube in range(5) for pe in range(3))
        assert np.array_equal(x.numpy(), values)
        x.fill_(3)
        assert x.numpy().tolist() == [[3] * 3] * 5
        y = torch.tensor(values, dp=over_pes)
        assert y.layout.owners == tuple((0, cube, pe) for cube in range(2) for pe in range(5))
        y.copy_(torch.tensor(values + 1))
        assert np.array_equal(y.numpy(), values + 1)
        z = torch.tensor(values.reshape(-1), dp=DPPolicy("replicate", "row_wise", num_cubes=1, num_pes=8))
        torch.launch("double", double, z)
        assert z.numpy().tolist() == [2 * i for i in range(15)]
