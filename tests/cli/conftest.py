"""The command line as a function: exit code, stdout and stderr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from coarse_pictures import coarse_pictures
from kernbench.cli.main import main

__all__ = ["Ran", "coarse_pictures", "kernbench"]


@dataclass(frozen=True)
class Ran:
    """What a command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def kernbench(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Run a command line in an empty directory, so that the packaged machine is the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
