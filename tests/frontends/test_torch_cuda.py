"""Programs that mean the machine by the device "cuda": torch.cuda answers for it, or refuses by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from extras import need
from kernbench.common.errors import InputError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.topology.builder import resolve_topology

need("torch")

import torch  # noqa: E402

import kernbench.torch  # noqa: E402

HAS_TRITON = find_spec("triton") is not None
if HAS_TRITON:
    import kernbench.triton  # before PyTorch loads Triton

MACHINE = resolve_topology("default", ["system.sips.count=2", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
HBM = MACHINE.spec.hbm_bytes_per_sip
CUDA = torch.device("cuda", 0)


@pytest.fixture
def context() -> Iterator[RuntimeContext[Any]]:
    """A context in which "cuda" is the machine."""
    settings = frontend_settings(["triton.capability=8.6"])
    with RuntimeContext(engine=GraphEngine(MACHINE), frontends=settings) as made, kernbench.torch.as_cuda():
        yield made


@pytest.mark.usefixtures("context")
def test_tensors_are_on_cuda() -> None:
    layer = torch.nn.Linear(2, 3).cuda()
    made = [
        torch.ones(3, device="cuda"),
        torch.ones(3).cuda(),
        torch.ones(3, pin_memory=True).pin_memory().cuda(0, non_blocking=True),
        torch.ones(3).to(torch.device("cuda", 0)),
        torch.empty(3, device=CUDA) + 1,
        layer.weight,
        layer(torch.ones(1, 2, device="cuda")),
        torch.zeros_like(layer.weight).T,
    ]
    assert {x.device for x in made} == {CUDA}
    assert all(x.is_cuda and x.get_device() == 0 for x in made)
    assert "device='cuda:0'" in repr(made[0])
    assert not made[0].cpu().is_cuda
    assert torch.zeros(2, device=made[0].device).is_cuda
    made[0].record_stream(torch.cuda.current_stream())


def test_outside_they_are_on_the_machine() -> None:
    names = {name: vars(torch.cuda)[name] for name in torch.cuda.__all__}
    with RuntimeContext(engine=GraphEngine(MACHINE)) as context:
        with kernbench.torch.as_cuda():
            x = torch.ones(3, device="cuda")
            torch.set_default_device("cuda")
            assert torch.ones(1).is_cuda
        assert (x.device, x.is_cuda) == (torch.device("ahbm:0"), False)
        assert torch.ones(1).device.type == "cpu"
        assert not context.frontends.torch.as_cuda
    assert not torch.cuda.is_available()
    assert {name: vars(torch.cuda)[name] for name in torch.cuda.__all__} == names


@pytest.mark.usefixtures("context")
def test_the_device_of_the_context_is_the_machine() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).device == CUDA
    assert not torch.ones(2).is_cuda


@pytest.mark.usefixtures("context")
def test_figures() -> None:
    assert (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device()) == (True, 2, 0)
    found = torch.cuda.get_device_properties("cuda:1")
    assert (found.major, found.minor) == torch.cuda.get_device_capability() == (8, 6)
    assert torch.cuda.get_arch_list() == ["sm_86"]
    assert (found.multi_processor_count, found.total_memory, found.warp_size) == (8, HBM, 32)
    assert found.shared_memory_per_block_optin == found.shared_memory_per_multiprocessor == MACHINE.spec.pe.tcm.bytes
    assert found.name == torch.cuda.get_device_name() == found.gcnArchName
    assert found.uuid != torch.cuda.get_device_properties(0).uuid
    assert torch.cuda.is_bf16_supported()
    assert not torch.cuda.can_device_access_peer(0, 1)


@pytest.mark.usefixtures("context")
def test_memory_in_use() -> None:
    assert torch.cuda.mem_get_info() == (HBM, HBM)
    x = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.mem_get_info() == (HBM - (4 << 20), HBM)
    del x
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 4 << 20)
    assert torch.cuda.mem_get_info(1) == (HBM, HBM)


@pytest.mark.usefixtures("context")
def test_the_current_device() -> None:
    assert torch._C._cuda_getCurrentRawStream(0) == torch.cuda.current_stream().cuda_stream  # noqa: SLF001
    with torch.cuda._DeviceGuard(1):  # noqa: SLF001 - as generated code does
        x = torch.ones(2, device="cuda")
        with torch.cuda.device_of(torch.ones(1)):
            assert torch.cuda.current_device() == 1
    assert (x.device.index, torch.cuda.current_device()) == (1, 0)
    with torch.cuda.device_of(x), torch.cuda.stream(torch.cuda.Stream(0)):
        assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_stream().device == torch.device("cuda", 1)
    with pytest.raises(InputError, match="7"):
        torch.cuda.set_device(7)


def test_events_are_in_simulated_time(context: RuntimeContext[Any]) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(InputError, match="both events have to be recorded"):
        begin.elapsed_time(end)
    begin.record()
    before = context.engine.now
    torch.ones(1000, device="cuda")
    torch.cuda.current_stream().record_event(end)
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) == pytest.approx((context.engine.now - before) * 1e-6)
    assert begin.elapsed_time(end) > 0


@pytest.mark.usefixtures("context")
def test_random_numbers() -> None:
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    x = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), x)
    drawn = torch.rand(4, device="cuda", generator=torch.Generator(device="cuda").manual_seed(3))
    assert torch.equal(drawn, x)


@pytest.mark.usefixtures("context")
def test_a_size_stays_a_size() -> None:
    size = torch.Size([3, 4])
    assert torch.ones(2, device="cuda").new(size).shape == size
    assert torch.ones(2).new(size).shape == size
    rates = torch.tensor([1.0, 2.0], device="cuda")
    assert torch.distributions.Exponential(rates).sample(size).shape == (3, 4, 2)


@pytest.mark.usefixtures("context")
def test_the_generator_of_a_device_draws_permutations() -> None:
    torch.manual_seed(3)
    wanted = torch.randperm(30)
    torch.manual_seed(3)
    drawn = torch.randperm(30, device="cuda", generator=torch.cuda.default_generators[0])
    assert torch.equal(drawn.cpu(), wanted)


@pytest.mark.usefixtures("context")
def test_kernels_draw_by_the_seed_and_the_offset_of_a_generator() -> None:
    torch.manual_seed(3)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.get_state()
    seed, offset = state.view(torch.int64)
    assert (int(seed), int(offset)) == (3, 0)
    offset += 8
    generator.set_state(state)
    assert generator.get_state().view(torch.int64).tolist() == [3, 8]
    x = torch.rand(4, device="cuda")
    with torch.random.fork_rng([0], device_type="cuda"):
        saved = torch.cuda.get_rng_state()
        assert saved.view(torch.int64).tolist() == [3, 12]
        torch.manual_seed(4)
        torch.rand(4, device="cuda", generator=generator)
        assert torch.cuda.get_rng_state().view(torch.int64).tolist() == [4, 4]
        torch.cuda.set_rng_state(saved)
    y = torch.rand(4, device="cuda")
    assert torch.cuda.get_rng_state().view(torch.int64).tolist() == [3, 16]
    torch.manual_seed(3)
    assert torch.equal(torch.rand(8, device="cuda"), torch.cat([x, y]))
    copied = saved.clone()
    assert torch.equal(torch.rand(4, device="cuda", generator=generator.set_state(copied)), y)
    with pytest.raises(InputError, match=r"a state of 5056 elements of torch.uint8: .* takes 16 bytes"):
        generator.set_state(torch.get_rng_state())


@pytest.mark.usefixtures("context")
def test_generators_of_their_own() -> None:
    generator = torch.Generator("cuda").manual_seed(-1)
    assert generator.get_state().view(torch.int64).tolist() == [-1, 0]
    state = generator.get_state()
    x = torch.rand(4, device="cuda", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.rand(4, device="cuda", generator=generator), x)
    generator.set_state(torch.tensor([5, 4]).view(torch.uint8))
    assert generator.initial_seed() == 5
    host = torch.Generator().manual_seed(1)
    assert (generator.device.type, host.device.type) == ("cuda", "cpu")
    states = torch.cuda.get_rng_state_all()
    drawn = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(2, device="cuda"), drawn)
    assert len(host.get_state()) > 16
    assert torch.equal(
        torch.rand(2, generator=host.set_state(host.get_state())),
        torch.rand(2, generator=torch.Generator().manual_seed(1)),
    )


@pytest.mark.usefixtures("context")
def test_the_backward_of_a_program_may_name_the_device() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * torch.full((3,), 2.0, device="cuda")

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            assert gradient.is_cuda
            assert gradient.device == CUDA
            return gradient * torch.full((3,), 2.0, device="cuda")

    x = torch.ones(3, device="cuda", requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def scaled(x: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda
    return x * torch.full((2,), 3.0, device="cuda")


@pytest.mark.parametrize("how", ["key", "device", "custom_op", "register_kernel", "every device"])
def test_operators_of_a_program_have_functions_for_gpus(context: RuntimeContext[Any], how: str) -> None:
    name = f"kernbench_test::{how.replace(' ', '_')}"
    library = torch.library.Library("kernbench_test", "FRAGMENT")
    if how in ("custom_op", "register_kernel"):
        there = torch.library.custom_op(name, lambda x: x + 0, mutates_args=(), schema="(Tensor x) -> Tensor")
        there.register_kernel("cuda" if how == "register_kernel" else None)(scaled)
    else:
        torch.library.define(name, "(Tensor x) -> Tensor", lib=library)
        if how == "key":
            torch.library.impl(library, name.partition("::")[2], "CUDA")(scaled)
            library.impl(name.partition("::")[2], torch.neg, "CPU")
        else:
            torch.library.impl(name, "cuda" if how == "device" else "default", scaled, lib=library)
    operator = getattr(torch.ops.kernbench_test, name.partition("::")[2])
    assert operator(torch.ones(2, device="cuda")).tolist() == [3, 3]
    if how == "key":
        assert operator(torch.ones(2)).tolist() == [-1, -1]
    assert not context.unmodelled


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "Autograd", "CPU"])
def test_functions_of_a_program_see_the_device_whatever_they_are_registered_for(key: str) -> None:
    library = torch.library.Library(f"kernbench_test_{key}", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x + torch.ones(2, device="cuda").to(x.device), key)
    x = torch.ones(2, device="cpu" if key == "CPU" else "cuda")
    assert getattr(torch.ops, library.ns).f(x).tolist() == [2, 2]


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_for_backward_is_the_same(reentrant: bool) -> None:
    def drop(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return torch.nn.functional.dropout(x, 0.5) * torch.ones(64, device="cuda") * x

    x = torch.ones(64, device="cuda", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(drop, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0)


@pytest.mark.usefixtures("context")
def test_what_backward_needs_may_be_saved_elsewhere() -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        (x * x).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t.cpu(), t.device), lambda saved: saved[0].to(saved[1])):
        (x * x).sum().backward()
    assert x.grad.tolist() == [4, 4, 4]


@pytest.mark.usefixtures("context")
def test_threads_pin_memory() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2, num_workers=1, pin_memory=True)
    assert [each.cuda(non_blocking=True).tolist() for each in loader] == [[0, 1], [2, 3]]


@pytest.mark.usefixtures("context")
def test_a_program_puts_a_function_in_place_of_pytorch_s() -> None:
    x = torch.eye(2, device="cuda", requires_grad=True)
    library = torch.library.Library("aten", "IMPL")
    kind = torch.accelerator.current_accelerator().type
    torch.accelerator.synchronize()
    library.impl("mm", lambda a, b: torch.full((2, 2), 7.0, device="cuda"), kind.upper())
    product = x @ x
    assert product.tolist() == [[7, 7], [7, 7]]
    product.sum().backward()
    library._destroy()  # noqa: SLF001 - as programs do
    assert (x @ x).tolist() == [[1, 0], [0, 1]]


@pytest.mark.usefixtures("context")
def test_functions_of_autocast_run_forward_and_backward() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float16)
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    x = torch.ones(3, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.get_autocast_dtype("cuda") is torch.bfloat16
        y = Doubled.apply(x)
    assert y.dtype is torch.float16
    y.float().sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.usefixtures("context")
def test_marks_for_a_profiler_do_nothing() -> None:
    torch.cuda.nvtx.range_push("a part")
    with torch.cuda.nvtx.range("another"):
        torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()


@pytest.mark.usefixtures("context")
def test_what_code_of_a_compiler_asks_for() -> None:
    made = torch._C._dynamo.guards._empty_strided_cuda((2, 3), (1, 2), torch.float16)  # noqa: SLF001
    assert (made.device, made.stride(), made.dtype) == (CUDA, (1, 2), torch.float16)
    assert torch.version.cuda >= "12.8"  # as programs ask


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("name", ["temperature", "memory_snapshot", "MemPool"])
def test_what_the_machine_has_no_answer_to_is_refused(name: str) -> None:
    with pytest.raises(
        InputError, match=f"torch.cuda.{name}: this machine does not have it; in torch.cuda there are: "
    ):
        vars(torch.cuda)[name]()


@pytest.mark.skipif(not HAS_TRITON, reason="kernbench[triton] is not installed")
@pytest.mark.usefixtures("context")
def test_the_driver_is_one_of_cuda() -> None:
    from triton.backends import backends  # noqa: PLC0415
    from triton.runtime import driver  # noqa: PLC0415

    found = backends["nvidia"].driver
    assert found.is_active()
    assert isinstance(driver.active, found)
    target = driver.active.get_current_target()
    assert (target.backend, target.arch, driver.active.get_device_capability()) == ("cuda", 86, (8, 6))
    assert driver.active.get_active_torch_device() == CUDA
    assert driver.active.get_device_interface() is torch.cuda
    assert driver.active.get_current_stream() == 0
