"""The page about users' parts: its programs run as they stand, in a folder of the user's."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from kernbench.cli.main import main
from kernbench.engine.part_check import check_parts
from kernbench.topology.builder import resolve_topology

PAGE = Path(__file__).parents[2] / "docs" / "parts.md"
FILES = dict(re.findall(r"```(?:python|yaml)\n# ([^\s,]+)[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL))
PROGRAMS = [name for name, text in FILES.items() if "assert " in text]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user works: all files of the page, and no other parts of those names."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_of_its_code_is_in_files() -> None:
    assert PAGE.read_text().count("```python") + PAGE.read_text().count("```yaml") == len(FILES)
    assert PROGRAMS == ["try_coffee.py", "try_limiter.py", "try_scratch.py", "my_monitor.py"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(
    folder: Path, program: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(program, run_name="__main__")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "override",
    [
        "cube.components.m_cpu.impl=my_parts.CoffeeCpu",
        "cube.extra.echo={impl: my_echo.Echo, links: [{to: m_cpu, bw_gbs: 64}]}",
        *(f"cube.components.noc_router.impl=my_routers.{each}" for each in ("Limiter", "Throttle", "Budget")),
    ],
)
def test_a_class_fits_its_place(folder: Path, override: str) -> None:
    check_parts(resolve_topology("default", [override]).topology_obj.places)


def test_its_yaml_is_a_part_of_a_machine(folder: Path) -> None:
    default = resolve_topology("default").source
    section = FILES["scratch.yaml"].removeprefix("cube:\n")
    Path("topology.yaml").write_text(Path(default).read_text().replace("\npe:\n", f"\n{section}\npe:\n"))
    node = resolve_topology().topology_obj.node("sip0.cube0.scratch")
    assert (node.impl, node.window.nbytes if node.window else 0) == ("my_memory.Scratch", 1 << 20)


def test_a_second_sram_is_a_part_of_a_machine(folder: Path) -> None:
    default = resolve_topology("default").source
    section = FILES["sram2.yaml"].removeprefix("cube:\n")
    Path("topology.yaml").write_text(Path(default).read_text().replace("\npe:\n", f"\n{section}\npe:\n"))
    node = resolve_topology().topology_obj.node("sip0.cube0.sram2")
    assert (node.impl, node.window.nbytes if node.window else 0) == ("builtin.sram", 4 << 20)


COMMANDS = dict.fromkeys(re.findall(r"^\$ kernbench (.*)$", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[pytest.mark.slow] * each.startswith("check-part")) for each in COMMANDS]
)
def test_a_command_runs(folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--set", "bench.m=32", "--set", "bench.k=64", "--set", "bench.n=32") * ("gemm-single-pe" in command)
    assert main([*command.split(), *small]) == 0, capsys.readouterr().err
