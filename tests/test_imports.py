"""Tests of imports between modules beyond the layers of ``pyproject.toml``."""

from __future__ import annotations

import grimp


def test_no_two_modules_import_each_other() -> None:
    graph = grimp.build_graph("kernbench", cache_dir=None)  # with the imports for annotations
    imports = {
        (module, imported) for module in graph.modules for imported in graph.find_modules_directly_imported_by(module)
    }
    assert len(imports) > 1000
    mutual = sorted({" and ".join(sorted(pair)) for pair in imports if pair[::-1] in imports})
    assert not mutual
