"""The names that people know from the system that this one is made after: programs that import them go on working."""

from __future__ import annotations

from importlib import import_module
from inspect import isclass, isfunction
from pkgutil import iter_modules

import pytest

import kernbench.ccl.algorithms
import kernbench.components.passive
import kernbench.tp

NAMES = """
kernbench.topology.builder: resolve_topology
kernbench.sim_engine.engine: GraphEngine
kernbench.sim_engine.component: Component
kernbench.sim_engine.transport: Network
kernbench.runtime_api.context: RuntimeContext
kernbench.runtime_api.types: DeviceSelector, resolve_device
kernbench.runtime_api.bench_runner: run_bench
kernbench.runtime_api.tensor: Tensor, deploy_tensor
kernbench.runtime_api.multiprocessing: SpawnException
kernbench.ccl.install: install_ipcq, load_ccl_config, resolve_algorithm_config
kernbench.ccl.topologies:
kernbench.ccl.mappers: leader_only, all_pes, pe0_of_every_cube
kernbench.ccl.validators: single_shard_per_rank, multi_pe_sip_local, row_per_cube
kernbench.ccl.install_plan: IpcqPlan, InstalledQueues, plan_of
kernbench.ccl.sfr_config: configure_sfr_intercube_multisip
kernbench.ccl.diagnostics: pointer_dump, IpcqDeadlock
kernbench.ccl.testing: run_kernel_in_mock
kernbench.policy.placement.dp: DPPolicy, ShardSpec, resolve_dp_policy
kernbench.policy.address.phyaddr: PhysAddr
kernbench.policy.address.allocator: PEMemAllocator, AddressConfig, AllocationError
kernbench.policy.address.pe_mmu: PeMMU
kernbench.policy.address.va_allocator: VirtualAllocator
kernbench.triton_emu.tl_context: TLContext
kernbench.tp:
kernbench.tp.parallel_state:
kernbench.tp.layers:
kernbench.tp.mappings:
kernbench.dtensor.device_mesh:
kernbench.dtensor.api:
kernbench.di.registry: register
"""
KNOWN = [line.split(":") for line in NAMES.split("\n") if line]


@pytest.mark.parametrize(("module", "names"), KNOWN, ids=[module for module, _ in KNOWN])
def test_known_names(module: str, names: str) -> None:
    found = import_module(module)
    for name in filter(None, names.replace(",", " ").split()):
        assert callable(getattr(found, name)), f"{module}.{name}"


def test_names_of_parallel_layers_and_of_passive_parts() -> None:
    for package in (kernbench.tp, kernbench.components.passive):
        public = [value for name, value in vars(package).items() if not name.startswith("_")]
        assert any(isclass(each) or isfunction(each) for each in public), package.__name__


@pytest.mark.parametrize("name", [each.name for each in iter_modules(kernbench.ccl.algorithms.__path__)])
def test_every_algorithm_has_its_kernel(name: str) -> None:
    module = import_module(f"kernbench.ccl.algorithms.{name}")
    assert callable(module.kernel)
    assert callable(module.kernel_args)


@pytest.mark.parametrize("name", ["sim_engine.engine", "ccl.mappers", "ccl.validators", "ccl.install_plan"])
def test_a_face_holds_no_code(name: str) -> None:
    face = import_module(f"kernbench.{name}")
    for each in face.__all__:
        assert getattr(getattr(face, each), "__module__", "") != face.__name__, each
