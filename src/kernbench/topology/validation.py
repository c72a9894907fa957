"""The pass from a document to a typed spec: structure, components, and the rules between sections."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from kernbench.common.complaints import model_at
from kernbench.common.config import Complaint, Document, check, path_of, report
from kernbench.di.registry import Registry
from kernbench.topology.rules import broken
from kernbench.topology.spec import TopologySpec


def validate_topology(document: Document, registry: Registry) -> TopologySpec:
    """The spec of a machine. Raises ConfigError with everything that is wrong with the file, in file order."""
    checked = check(document, TopologySpec, context=registry)
    spec = checked.value
    found = _broken_rules(document, registry) if spec is None else list(broken(partial(_section_of, spec)))
    report(document, [*checked.complaints, *found])
    assert spec is not None, "a document without complaints has a spec"
    return spec


def _section_of(spec: TopologySpec, path: str) -> Any:
    section: Any = spec
    for name in path_of(path):
        section = dict(section)[name]
    return section


def _broken_rules(document: Document, registry: Registry) -> list[Complaint]:
    """What the rules say about those sections of an unsound document that are sound by themselves."""

    @cache
    def sound_section(path: str) -> Any:
        model = model_at(TopologySpec, path_of(path))
        assert model is not None, f"a rule names {path}, which is no section"
        return check(document, model, path_of(path), registry).value

    return list(broken(sound_section))
