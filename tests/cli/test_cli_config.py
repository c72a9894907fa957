"""Tests of ``kernbench config``, ``kernbench list BENCH``, and of what the shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from kernbench.cli.commands import cli

Run = Callable[..., Any]
PART = """\
from kernbench.components.passive import NocRouter

class Attrs(NocRouter.Attrs):
    share: float = 0.5
    \"\"\"The share of the bandwidth that it gives away.\"\"\"

class Router(NocRouter):
    Attrs = Attrs
"""


def test_a_key(kernbench: Run) -> None:
    ran = kernbench("config", "pe.gemm.tile_m", "--set", "pe.gemm.tile_m=16")
    assert (ran.code, ran.err) == (0, "")
    for text in ("Rows of a tile of the result.", "whole number", "1 to 1,000,000", "required", "in default  16"):
        assert text in ran.out


def test_a_section_lists_its_keys(kernbench: Run) -> None:
    ran = kernbench("config", "cube.hbm", "--topology", "edge")
    assert ran.code == 0
    for text in ("Keys of cube.hbm", "bytes_per_slice", "16GiB", "in edge", "all-bank, spread, none or null"):
        assert text in ran.out
    assert "system" in kernbench("config").out


def test_json_of_a_key(kernbench: Run) -> None:
    found = json.loads(kernbench("config", "cube.hbm.refresh", "--json").out)
    assert (found["machine"], found["path"], found["value"]) == ("default", "cube.hbm.refresh", None)
    assert (found["default"], found["required"], found["unit"]) == (None, False, None)
    assert found["choices"] == ["all-bank", "spread", "none"]
    section = json.loads(kernbench("config", "pe.dma", "--json").out)
    assert [(each["path"], each["unit"]) for each in section["keys"]] == [
        ("pe.dma.setup_ns", "ns"),
        ("pe.dma.ordering", None),
    ]


def test_keys_of_a_class_of_the_users(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "config_test_part.py").write_text(PART)
    impl = ("--set", "cube.components.noc_router.impl=config_test_part.Router")
    ran = kernbench("config", "cube.components.noc_router.attrs.share", *impl)
    assert ran.code == 0
    assert "The share of the bandwidth that it gives away." in ran.out


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("cube.hbm.refrsh", "did you mean 'refresh'?"),
        ("refresh", "elsewhere: cube.hbm.refresh"),
        ("cube.hbm.slices.x", "cube.hbm.slices has no key 'x'"),
        ("a b", "is not a path"),
    ],
)
def test_what_is_no_key(kernbench: Run, path: str, words: str) -> None:
    ran = kernbench("config", path)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_parameters_of_a_bench(kernbench: Run) -> None:
    ran = kernbench("list", "gemm_single_pe")
    assert (ran.code, ran.err) == (0, "")
    for text in ("full host-to-PE path", "--set bench.NAME=VALUE", "512", "Rows of the result.", "f32, f16, bf16"):
        assert text in ran.out
    document = json.loads(kernbench("list", "gemm-single-pe", "--json").out)
    found = {each["path"]: each for each in document["params"]}
    assert (document["bench"], next(iter(found))) == ("gemm-single-pe", "bench.m")
    assert (found["bench.m"]["default"], found["bench.m"]["allowed"]) == (512, "more than 0")
    assert found["bench.dtype"]["choices"] == ["f32", "f16", "bf16"]


def test_a_bench_without_parameters_and_none(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def run(torch):\n    """Mine."""\n')
    ran = kernbench("list", "mine.py")
    assert (ran.code, "mine has no parameters" in ran.err) == (0, True)
    ran = kernbench("list", "gem-single")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'gemm-single-pe'?" in ran.err
    ran = kernbench("list", "gemm-single-pe", "--ccl", "ccl.yaml")
    assert (ran.code, "--ccl selects the file whose algorithms are listed" in ran.err) == (2, True)


def complete(*words: str) -> list[str]:
    """Return what the shell is offered for the last word."""
    shell = ShellComplete(cli, {}, "kernbench", "_KERNBENCH_COMPLETE")
    return [each.value for each in shell.get_completions(list(words[:-1]), words[-1]) if each.type == "plain"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ru",), ["run"]),
        (("run", "--sanit"), ["--sanitize"]),
        (("run", "--bench", "gem"), ["gemm-single-pe"]),
        (("web", "--bench", "tp-"), ["tp-block", "tp-mlp"]),
        (("list", "hel"), ["hello-send"]),
        (("probe", "--case", "h2d"), ["h2d-local", "h2d-far"]),
        (("probe", "--case", "mem"), ["memory"]),
        (("topology", "--topology", "ed"), ["edge"]),
        (("topology", "--set", "pe.dma."), ["pe.dma.setup_ns", "pe.dma.ordering"]),
        (("run", "--set", "cube.hbm.num"), ["cube.hbm.num_pcs=8"]),
        (("run", "--topology", "edge", "--set", "cube.hbm.num"), ["cube.hbm.num_pcs=4"]),
        (("sweep", "--set", "cube.hbm.refresh=s"), ["cube.hbm.refresh=spread"]),
        (("run", "--set", "transport.exp"), ["transport.express=true", "transport.express=false"]),
        (("run", "--bench", "tp-mlp", "--set", "bench.h"), ["bench.hidden=256"]),
        (("config", "cube.noc."), ["cube.noc.w", "cube.noc.h", "cube.noc.link_bw_gbs"]),
        (("config", "--topology", "no.yaml", "cube"), []),
        (("rnu", ""), complete("")),
    ],
)
def test_what_the_shell_completes(
    words: tuple[str, ...], offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete(*words) == offered


def test_where_no_name_fits_files_are_completed() -> None:
    found = ShellComplete(cli, {}, "kernbench", "_KERNBENCH_COMPLETE").get_completions(["run", "--bench"], "./my")
    assert [(each.type, each.value) for each in found] == [("file", "./my")]


def test_completion_through_the_command() -> None:
    """The shell asks by the environment; nothing heavy is loaded for the name of a command."""
    script = (
        "import sys; from kernbench.cli.main import main; code = main([]);"
        " print([each for each in ('numpy', 'pydantic') if each in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    words = {"_KERNBENCH_COMPLETE": "bash_complete", "COMP_WORDS": "kernbench pro", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ | words
    )
    assert (done.stdout, done.stderr) == ("plain,probe\n", "[]\n")


def test_fish_keeps_commas() -> None:
    """A line of help has commas; in fish the kind of a word is what stands before the first."""
    command = [sys.executable, "-c", "from kernbench.cli.main import entry; entry()"]
    asked = os.environ | {"_KERNBENCH_COMPLETE": "fish_source"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=asked)
    assert 'string split -m 1 "," $completion' in done.stdout
