"""Benchmarks of the simulator itself: `pytest benches`. Nothing here passes or fails by a time.

What the registered benches took is put beside the last committed figures (`benches/figures.json`): a table at the end
of the session and in `results/benches/comparison.md`. `--update-figures` makes the new figures the committed ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from bench_figures import COMMITTED, RESULTS, FigureBook, Figures, committed
from kernbench.common.files import replacing
from kernbench.topology.builder import Topology, resolve_topology

BOOK = pytest.StashKey[FigureBook]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let new figures become the committed ones."""
    parser.addoption("--update-figures", action="store_true", help="write benches/figures.json anew")


def pytest_configure(config: pytest.Config) -> None:
    """A book for the session."""
    config.stash[BOOK] = FigureBook()


@pytest.fixture
def book(request: pytest.FixtureRequest) -> FigureBook:
    """Where a registered bench notes its figures."""
    return request.config.stash[BOOK]


@pytest.fixture(scope="session")
def topology() -> Topology:
    """The packaged machine."""
    return resolve_topology("default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The comparison, and where it was written."""
    book, before = config.stash[BOOK], committed()
    if not book.taken:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = book.table(before)
    for path, text in _files(book, before, lines, update=config.getoption("--update-figures")):
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        terminalreporter.write_line(f"wrote {path}")
    for line in lines:
        terminalreporter.write_line(line)


def _files(
    book: FigureBook, before: dict[str, Figures], lines: list[str], *, update: bool
) -> Iterator[tuple[Path, str]]:
    taken = {name: asdict(each) for name, each in book.taken.items()}
    yield RESULTS / "comparison.md", "\n".join(lines) + "\n"
    yield RESULTS / "figures.json", json.dumps(taken, indent=1) + "\n"
    if update:
        kept = {name: asdict(each) for name, each in before.items()}
        yield COMMITTED, json.dumps(kept | taken, indent=1, sort_keys=True) + "\n"
