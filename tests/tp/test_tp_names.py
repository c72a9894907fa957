"""Programs for the original system import these modules by name."""

from __future__ import annotations

import importlib

import pytest

NAMES = {
    "kernbench.tp.parallel_state": (
        "destroy_model_parallel",
        "get_tensor_model_parallel_rank",
        "get_tensor_model_parallel_world_size",
        "initialize_model_parallel",
        "model_parallel_is_initialized",
    ),
    "kernbench.tp.layers": ("ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding"),
    "kernbench.tp.mappings": (
        "copy_to_tp_region",
        "gather_from_tp_region",
        "reduce_from_tp_region",
        "scatter_to_tp_region",
    ),
}


@pytest.mark.parametrize("module", NAMES)
def test_a_module_has_what_its_name_suggests_and_it_is_the_packages_own(module):
    found, package = importlib.import_module(module), importlib.import_module("kernbench.tp")
    for name in NAMES[module]:
        assert getattr(found, name) is getattr(package, name)
