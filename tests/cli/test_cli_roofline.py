"""``kernbench run --roofline``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernbench.cli.main import main

SMALL = ("run", "--bench", "matmul-composite", "--topology", "one-cube")
SIZES = ("--set", "bench.m=64", "--set", "bench.k=64", "--set", "bench.n=64")
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_picture_is_written_beside_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "roof.PNG"
    assert main([*SMALL, *SIZES, "--roofline", str(place), "--json"]) == 0
    out, err = capsys.readouterr()
    assert place.read_bytes().startswith(PNG)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["roof.PNG", "roof.PNG.config.yaml"]
    assert f"wrote {place}" in err
    assert json.loads(out)["explanation"]["roofline"]


def test_equal_runs_give_equal_pictures(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("a.png", "b.png")]
    for place in places:
        assert main([*SMALL, *SIZES, "--roofline", str(place)]) == 0
    assert places[0].read_bytes() == places[1].read_bytes()


def test_a_run_without_arithmetic_has_a_picture_of_the_roofs(tmp_path: Path) -> None:
    place = tmp_path / "roof.png"
    arguments = ["--topology", "one-cube", "--set", r"bench.text=$\frac$ no mathematics", "--roofline", str(place)]
    assert main(["run", "--bench", "hello-send", *arguments]) == 0
    assert place.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("roof.svg", "--roofline roof.svg: a PNG is written; give a name that ends with .png"),
        ("roof", "--roofline roof: a PNG is written; give a name that ends with .png"),
        ("nowhere/roof.png", "nowhere/roof.png: cannot be written there: no such folder, or not allowed"),
        ("folder.png", "folder.png: is a folder; name a file in it"),
    ],
)
def test_a_bad_path_is_refused_before_the_run(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    assert main([*SMALL, *SIZES, "--roofline", path]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", [f"error: {why}"])


def test_an_evaluation_has_no_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--bench", "milestone-1h-gemm", "--roofline", "roof.png"]) == 2
    assert "--roofline: for one simulation" in capsys.readouterr().err
