"""A small machine, a run on it, and the page of that run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headless import Page as Tab
from headless import browser, find_chromium
from web_support import GEMM, observe_run

import kernbench.benches
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.web.activity import ObservedRun
from kernbench.web.page import Page, make_page

BENCHES = kernbench.benches.__name__


@pytest.fixture(scope="session")
def tab() -> Iterator[Tab]:
    """A tab of the one browser of all tests; tests that need it are left out where no Chromium is installed."""
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium is installed")
    with browser(executable) as made:
        made.resize(1280, 800)
        made.prefer("light")
        yield made


@pytest.fixture(scope="session")
def machine() -> Topology:
    return resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=1"])


@pytest.fixture(scope="session")
def gemm(machine: Topology) -> ObservedRun:
    return observe_run(machine, load_bench("gemm-single-pe"), DeviceSelector("all"), GEMM)


@pytest.fixture(scope="session")
def page(machine: Topology, gemm: ObservedRun) -> Page:
    return make_page(machine, gemm)
