"""Everything that a worker needs, imported: parts and benches are found when they are first asked for."""

import gc

from kernbench.di.registry import REGISTRY
from kernbench.evaluation import sweep_driver
from kernbench.runtime_api.bench_registry import known_benches

WARM = (sweep_driver.__name__, *REGISTRY.known_impls(), *(bench.name for bench in known_benches()))
# None of this goes away again: the workers need not look through it for garbage, time and again.
gc.freeze()
