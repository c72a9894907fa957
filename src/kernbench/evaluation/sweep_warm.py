"""Import everything that a worker needs: without this, parts and benches are imported on first use."""

import gc

from kernbench.di.registry import REGISTRY
from kernbench.evaluation import sweep_driver
from kernbench.runtime_api.bench_registry import known_benches

WARM = (sweep_driver.__name__, *REGISTRY.known_impls(), *(bench.name for bench in known_benches()))
# These objects live until the end, so exclude them from garbage collection in the workers.
gc.freeze()
