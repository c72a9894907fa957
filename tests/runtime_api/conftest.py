"""A small machine and contexts on a fake engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from fake_engine import FakeEngine, small_machine

from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import Multiprocessing
from kernbench.runtime_api.ranks import GreenletRunner, ThreadRunner
from kernbench.topology.builder import Topology


@pytest.fixture(scope="session")
def machine() -> Topology:
    return small_machine()


@pytest.fixture
def engine(machine: Topology) -> FakeEngine:
    return FakeEngine(machine)


@pytest.fixture
def torch(engine: FakeEngine) -> Iterator[RuntimeContext]:
    with RuntimeContext(engine) as context:
        yield context


@pytest.fixture
def fresh(machine: Topology) -> Callable[..., RuntimeContext]:
    """A context on an engine of its own."""

    def make(**options: object) -> RuntimeContext:
        return RuntimeContext(FakeEngine(machine, **options))

    return make


@pytest.fixture(params=[GreenletRunner, ThreadRunner], ids=["greenlets", "threads"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The ranks are greenlets, then threads; no thread is left behind."""
    monkeypatch.setattr(Multiprocessing, "runner", request.param)
    before = threading.active_count()
    yield
    assert threading.active_count() <= before
