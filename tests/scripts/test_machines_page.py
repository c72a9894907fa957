"""docs/machines.md is what the packaged machines give: drawings, tables, the comparison."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from covering import sample
from kernbench.common.errors import InputError
from kernbench.common.imports import import_file
from kernbench.topology.builder import packaged_machines, resolve_topology
from kernbench.topology.drawing.figure import to_svg
from machines_page import figure_name, fill_page, tabulate_machines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
SCRIPT = import_file(ROOT / "scripts" / "draw_machines.py", "the script")
NUMBER = re.compile(r"-?\d+\.\d+")


def _section(name: str) -> str:
    return PAGE.partition(f"<!-- {name} -->\n")[2].partition("\n<!-- end -->")[0]


def _shapes(svg: str) -> Iterator[str]:
    """Yield texts, and paths with rounded coordinates: what another version of Matplotlib draws alike."""
    for element in ET.fromstring(svg).iter():
        if element.text and element.text.strip() and element.tag.endswith("text"):
            yield element.text.strip()
        if "d" in element.attrib:
            yield NUMBER.sub(lambda match: f"{float(match[0]):.1f}", " ".join(element.attrib["d"].split()))


@pytest.mark.parametrize("machine", sample(packaged_machines(), "default", "ring16"))
def test_the_drawings_are_up_to_date(machine: str) -> None:
    """Make them anew by scripts/draw_machines.py."""
    drawn = (ROOT / "docs" / "figures" / figure_name(machine)).read_text(encoding="utf-8")
    assert list(_shapes(drawn)) == list(_shapes(to_svg(resolve_topology(machine))))
    assert f"figures/{figure_name(machine)}" in PAGE


def test_a_drawing_says_peak_and_sustained() -> None:
    drawn = (ROOT / "docs" / "figures" / figure_name("default")).read_text(encoding="utf-8")
    assert "a slice: peak 204.8, sustained 182.9 GB/s" in drawn


def test_the_readme_shows_the_default_machine() -> None:
    assert f"docs/figures/{figure_name('default')}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_up_to_date() -> None:
    assert _section("table") == tabulate_machines()


@pytest.mark.slow
def test_the_idle_reads_are_up_to_date() -> None:
    assert _section("idle reads") == SCRIPT.time_idle_reads()


def test_the_comparison_is_up_to_date() -> None:
    assert _section("comparison") == SCRIPT.compare_machines()


def test_filling_a_page() -> None:
    page = "a\n<!-- x -->\nold\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    filled = fill_page(page, {"x": "new", "y": "other"})
    assert filled == "a\n<!-- x -->\nnew\n<!-- end -->\nb\n<!-- y -->\nother\n<!-- end -->\n"
    assert fill_page(filled, {"x": "new"}) == filled
    with pytest.raises(InputError, match="no section <!-- z -->"):
        fill_page(page, {"z": ""})
