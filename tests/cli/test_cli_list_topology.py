"""``kernbench list`` and ``kernbench topology``."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.main import main
from kernbench.common.errors import InputError
from kernbench.common.files import write_bytes

Run = Callable[..., Any]
SMALL = ("--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1")


def test_list_names_everything(kernbench: Run) -> None:
    ran = kernbench("list", "-v")
    assert ran.code == 0
    for name in ("gemm-single-pe", "va-offset-verify", "wafer", "pe_ipcq", "pe-cross-sip-hbm", "sip_allreduce"):
        assert name in ran.out
    assert "…" not in ran.out


@pytest.mark.parametrize("command", ["list", "topology"])
def test_a_report_has_forty_lines_unless_all_is_wanted(kernbench: Run, command: str) -> None:
    short, whole = kernbench(command), kernbench(command, "-v")
    assert len(short.out.splitlines()) <= 40 < len(whole.out.splitlines())
    assert "-v prints" in short.out
    assert "-v prints" not in whole.out
    assert "builtin.hbm_ctrl" in whole.out


@pytest.mark.parametrize("name", ["hbm2", "hbm3e", "ddr5"])
def test_a_timing(kernbench: Run, name: str) -> None:
    ran = kernbench("topology", "--timing", name)
    assert (ran.code, ran.err) == (0, "")
    assert ("assumed" in ran.out) == (name == "hbm3e")
    for text in ("source", "peak of a PC", "GB/s", "refi_ns", "3900 ns", "tREFI"):
        assert text in ran.out
    assert json.loads(kernbench("topology", "--timing", name, "--json").out)["name"] == name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--timing", "hmb3"),
            "unknown timing 'hmb3'; there are: hbm2, hbm3, hbm3e, hbm4, lpddr5, lpddr5x, ddr5; did you",
        ),
        (("--timing", "hbm3", "--format", "svg"), "--timing prints a named timing"),
        (("--timing", "hbm3", *SMALL), "--timing prints a named timing"),
    ],
)
def test_what_is_no_timing(kernbench: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = kernbench("topology", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_warning_comes_once(kernbench: Run) -> None:
    ran = kernbench("topology", "--set", "cube.hbm.queue_entries=16")
    assert ran.code == 0
    (line,) = ran.err.splitlines()
    assert line.startswith("warning: --set cube.hbm.queue_entries=16: cube.hbm.queue_entries: ")
    assert kernbench("topology").err == ""


def test_list_as_json(kernbench: Run) -> None:
    ran = kernbench("list", "--json")
    document = json.loads(ran.out)
    assert list(document) == ["benches", "machines", "algorithms", "components", "probe_cases"]
    assert {"kind": "io_noc", "impl": "builtin.noc_router"}.items() <= document["components"][4].items()
    assert all(entry["description"] for entries in document.values() for entry in entries)


def test_the_table(kernbench: Run) -> None:
    ran = kernbench("topology")
    assert ran.code == 0
    for text in (
        "2, ring_1d",
        "256, 8 a cube",
        "cube_to_cube",
        "1,536",
        "unbounded",
        "15 ns to the first byte",
        "a slice: peak 204.8, sustained 182.9 GB/s",
    ):
        assert text in ran.out
    assert "…" not in ran.out


@pytest.mark.parametrize("width", ["60", "200"])
def test_no_cell_is_cut(kernbench: Run, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    ran = kernbench("topology")
    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= int(width)


@pytest.mark.parametrize("flag", [("--json",), ("--format", "json")])
def test_json(kernbench: Run, flag: tuple[str, ...]) -> None:
    ran = kernbench("topology", *SMALL, *flag)
    document = json.loads(ran.out)
    assert {node["id"] for node in document["nodes"]} >= {"host", "sip0.cube0.pe7.pe_dma"}
    assert kernbench("topology", *SMALL, *flag).out == ran.out


def test_a_local_file_is_the_default(kernbench: Run) -> None:
    text = (Path(__file__).parents[2] / "topology.yaml").read_text()
    Path("topology.yaml").write_text(text.replace("{ count: 2", "{ count: 1"))
    assert re.search("PEs +128", kernbench("topology").out)
    assert re.search("PEs +256", kernbench("topology", "--topology", "default").out)


@pytest.mark.parametrize(("form", "begins"), [("dot", b"digraph"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_files(kernbench: Run, form: str, begins: bytes) -> None:
    ran = kernbench("topology", *SMALL, "--format", form, "--out", f"machine.{form}")
    assert ran.code == 0
    assert not ran.out
    assert f"wrote machine.{form}" in ran.err
    assert Path(f"machine.{form}").read_bytes().startswith(begins)
    assert [path.name for path in Path().iterdir()] == [f"machine.{form}"]


def test_a_table_in_a_file(kernbench: Run) -> None:
    assert kernbench("topology", *SMALL, "--out", "machine.txt").code == 0
    assert "Machine" in Path("machine.txt").read_text()


def test_a_picture_is_not_for_a_terminal(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ran = kernbench("topology", "--format", "png")
    assert ran.code == 2
    assert "--out machine.png" in ran.err


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "machine.dot"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_bytes(target, b"new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["machine.dot"]


def test_text_goes_to_any_stdout() -> None:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["topology", "--format", "json"]) == 0
    assert json.loads(text.getvalue())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("timing=hbm33", ".timing: found 'hbm33', did you mean 'hbm3'? must be one of: ideal, hbm2, hbm3, hbm3e, hbm4"),
        ("timing={rc_ns: -5}", ".timing.rc_ns: found -5, must be at least 0"),
        ("timing={rcns: 5}", ".timing.rcns: unknown key 'rcns'; did you mean 'rc_ns'? allowed here: stacks, groups"),
        (
            "timing=[1]",
            ".timing: found [1], must be one of: ideal, hbm2, hbm3, hbm3e, hbm4, lpddr5, lpddr5x, ddr5, or a mapping",
        ),
        ("mapping=foo", ".mapping: found 'foo', must be one of: interleave, hash, MOP4CLXOR, RoBaRaCoCh, or a list"),
        ("mapping=[{field: pcc}]", ".mapping[0].field: found 'pcc', did you mean 'pc'? must be one of: column, pc"),
        ("mapping=[{values: 4}]", ".mapping[0]: missing key 'field'"),
        ("mapping=[{field: pc, fold: bak}]", ".mapping[0].fold: found 'bak', did you mean 'bank'? must be one of"),
        ("mapping=[]", ".mapping: found no fields; must have pc, stack, group and bank once each"),
        ("num_pcs=3", ".num_pcs: found 3, must be a power of two; channel_hash: mod takes any"),
        ("num_pcs=16", ".num_pcs: 16 pseudo-channels of 25.6 GB/s are 409.6 GB/s, but cube.links.xbar_to_hbm carries"),
    ],
)
def test_what_is_wrong_with_hbm_is_one_complaint(kernbench: Run, change: str, complaint: str) -> None:
    ran = kernbench("topology", "--set", f"cube.hbm.{change}")
    assert ran.code == 2
    (line,) = ran.err.splitlines()
    assert f"cube.hbm{complaint}" in line
