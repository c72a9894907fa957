"""The builtin benches: a module each, which is imported when its bench is looked up."""

from kernbench.runtime_api.bench_registry import REGISTRY

REGISTRY.add_package(__name__)
