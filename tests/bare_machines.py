"""Fixtures: machines of parts that do nothing, so that no component class is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernbench.common.config import apply_overrides, parse_document
from kernbench.di.part import KINDS, Part
from kernbench.di.registry import Registry
from kernbench.topology.builder import Topology, compile_topology

Compile = Callable[..., Topology]
SHARED = {"noc_router": ("noc_router", "io_noc"), "ucie": ("ucie", "sip_port")}


def bare_registry() -> Registry:
    """A part of each kind."""
    registry = Registry()
    for kind in (kind for kind in KINDS if kind not in {"io_noc", "sip_port"}):
        registry.register(f"builtin.{kind}", kind=SHARED.get(kind, kind))(type(kind, (Part,), {}))
    return registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    return bare_registry()


@pytest.fixture(scope="session")
def default_text() -> str:
    return (Path(__file__).parents[1] / "topology.yaml").read_text()


@pytest.fixture(scope="session")
def compiled(registry: Registry, default_text: str) -> Compile:
    """The default machine with ``--set`` texts applied."""
    document = parse_document(default_text, "topology.yaml")

    def compile_with(*overrides: str) -> Topology:
        return compile_topology(apply_overrides(document, overrides), registry)

    return compile_with
