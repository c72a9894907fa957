"""The notebook in examples/ runs, from the first cell to the last."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "three_machines.ipynb"
HAS_PANDAS = importlib.util.find_spec("pandas") is not None


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    cells = [
        "".join(each["source"]) for each in json.loads(NOTEBOOK.read_text())["cells"] if each["cell_type"] == "code"
    ]
    assert cells[0].startswith("import kernbench as kb")
    assert len([line for line in cells[0].splitlines() if line]) <= 11  # and the import of the library for pictures
    names: dict[str, Any] = {}
    for cell in cells:
        if HAS_PANDAS or "to_pandas" not in cell:
            exec(compile(cell, "a cell", "exec"), names)
    assert [each.get_label() for each in plt.gca().get_lines()] == [
        "edge: 4 PEs",
        "one-cube: 8 PEs",
        "default: 256 PEs",
    ]
    plt.close("all")
    assert names["run"].ok
    assert not len(names["found"].failed)
