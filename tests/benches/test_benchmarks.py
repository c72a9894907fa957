"""The benchmarks of the simulator (`benches/` of the repository) also run where nothing is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benches"
SOME_OF_EACH_FILE = "hello-send or local-64 or own or test_waits or 64B-low-packets"


def test_one_place_asks_for_times() -> None:
    """Without timing there are none: `bench_figures` knows that, and a benchmark that asks by itself fails there."""
    asking = [file.name for file in sorted(BENCHMARKS.glob("*.py")) if ".stats" in file.read_text("utf-8")]
    assert asking == ["bench_figures.py"]


@pytest.mark.slow
def test_they_pass_without_timing(tmp_path: Path) -> None:
    """And put nothing beside the committed figures, which are times."""
    command = [sys.executable, "-m", "pytest", str(BENCHMARKS), "--benchmark-disable", "-k", SOME_OF_EACH_FILE]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not (tmp_path / "results").exists()
