"""Which algorithm an all-reduce is done by, which reduction it is, and that both are told."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from machines import INTERCUBE, context_on, run_ranks, working_machine

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tp import reduce_from_tp_region
from kernbench.tp.parallel_state import initialize_model_parallel

ROW_PER_CUBE = DPPolicy(cube="row_wise", num_pes=1)
ROWS, ONE_PE = (2, 5), (7,)


def intercube(**more: object) -> str:
    return f"{INTERCUBE[:-1]}{''.join(f', {key}: {value}' for key, value in more.items())}}}"


def tensor_of(torch: RuntimeContext, rank: int, shape: tuple[int, ...]) -> object:
    dp = ROW_PER_CUBE if shape == ROWS else None
    return torch.full(shape, float(rank + 1), dp=dp, name=f"t{rank}")


def reduced(torch: RuntimeContext, shape: tuple[int, ...], *args: object, **options: object) -> set[float]:
    """What 1 and 2, of two ranks, become everywhere."""

    def program(rank: int) -> set[float]:
        tensor = tensor_of(torch, rank, shape)
        torch.distributed.all_reduce(tensor, *args, **options)
        return set(tensor.numpy().reshape(-1).tolist())

    return set().union(*run_ranks(torch, program))


def ran(torch: RuntimeContext) -> list[str | None]:
    return list(dict.fromkeys(each.algorithm for each in torch.traces if each.name == "all_reduce"))


@pytest.mark.parametrize(
    ("configured", "args", "rows", "one"),
    [
        ({}, (), 6, 3),
        ({"reduce_op": "max"}, (), 2, 2),
        ({"reduce_op": "avg"}, (), 1.5, 1.5),
        ({"reduce_op": "max"}, ("sum",), 6, 3),
        ({"reduce_op": "max"}, ("min",), 1, 1),
        ({"reduce_op": "min"}, (None,), 1, 1),
    ],
)
@pytest.mark.filterwarnings("ignore:all_reduce. the configured")
def test_the_reduction_is_that_of_the_call_then_that_of_the_file_then_the_sum(
    tmp_path: Path, configured: dict[str, str], args: tuple[str, ...], rows: float, one: float
) -> None:
    """Also when something else than the configured algorithm does it."""
    with context_on(working_machine(), tmp_path, intercube(**configured)) as torch:
        assert reduced(torch, ROWS, *args) == {rows}
        assert reduced(torch, ONE_PE, *args) == {one}


def test_the_other_collectives_and_libraries_mean_what_pytorch_means(tmp_path: Path) -> None:
    with context_on(working_machine(), tmp_path, intercube(reduce_op="max")) as torch, warnings.catch_warnings():
        warnings.simplefilter("error")
        dist = torch.distributed

        def program(rank: int) -> list[float]:
            initialize_model_parallel(2, torch=torch)
            whole, block, to_one = (torch.full((n,), rank + 1.0) for n in (4, 2, 3))
            dist.reduce_scatter(block, whole)
            dist.reduce(to_one, 0)
            parallel = reduce_from_tp_region(torch.full((2,), rank + 1.0), torch=torch)
            elementwise = torch.full(ROWS, rank + 1.0, dp=ROW_PER_CUBE)
            dist.all_reduce(elementwise, elementwise=True)
            return [
                block[0].item(),
                to_one[0].item() if rank == 0 else 3.0,
                parallel[0].item(),
                elementwise[0, 0].item(),
            ]

        assert run_ranks(torch, program) == [[3.0] * 4] * 2


def test_the_configured_algorithm_is_named_by_what_is_recorded(tmp_path: Path) -> None:
    with context_on(working_machine(), tmp_path) as torch, warnings.catch_warnings():
        warnings.simplefilter("error")
        reduced(torch, ROWS)
        assert ran(torch) == ["chosen"]
        assert {each.algorithm for each in torch.traces if each.phase != "launch"} == {None}


def test_what_takes_its_place_is_told_once_a_run_with_the_reason(tmp_path: Path) -> None:
    for _ in range(2):
        with context_on(working_machine(), tmp_path) as torch, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            reduced(torch, ONE_PE)
            reduced(torch, ONE_PE, "max")
            reduced(torch, ROWS)
        (warning,) = told
        for part in ("'chosen'", "sip_allreduce does it instead", "not accepted by row_per_cube", "shape (2, n)"):
            assert part in str(warning.message)
        assert warning.filename == __file__
        assert ran(torch) == ["sip_allreduce", "chosen"]


def test_a_group_of_some_ranks_is_not_what_is_configured(tmp_path: Path) -> None:
    with context_on(working_machine(3), tmp_path) as torch:

        def program(rank: int) -> None:
            group = torch.distributed.new_group([0, 2])
            if rank != 1:
                torch.distributed.all_reduce(tensor_of(torch, rank, ROWS), group=group)

        with pytest.warns(RuntimeWarning, match="it runs over all ranks, the call over ranks 0, 2; sip_allreduce"):
            run_ranks(torch, program)


@pytest.mark.parametrize("op", [None, "sum"])
def test_strict_allows_no_other(tmp_path: Path, op: str | None) -> None:
    with context_on(working_machine(), tmp_path) as torch:
        torch_file = tmp_path / "ccl.yaml"
        torch_file.write_text(f"defaults: {{ strict: true }}\n{torch_file.read_text()}")
        assert reduced(torch, ROWS, op) == {6}
        assert reduced(torch, ONE_PE, op, elementwise=True) == {3}
        with pytest.raises(
            SpawnException, match=r"the configured 'chosen' cannot do this: tensor 't1'.*strict"
        ) as error:
            reduced(torch, ONE_PE, op)
        assert error.value.exit_code == 2


def test_sip_allreduce_keeps_its_settings_for_a_layout_that_it_was_not_declared_for(tmp_path: Path) -> None:
    entry = "{module: sip_allreduce, topology: none, mapper: all_pes, validator: multi_pe_sip_local, chunk_size: %s}"
    messages = []
    for size in (64, 4096):
        with context_on(working_machine(), tmp_path, entry % size) as torch, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert reduced(torch, (512,)) == {3}
            records = torch.engine.op_log
            messages.append(sum(each.kind == "ipcq_copy" for each in records))
            assert ran(torch) == ["chosen"]
    assert messages[0] == 16 * messages[1]


@pytest.mark.parametrize(("name", "topology"), [("ring_allreduce", "ring_1d"), ("intercube_allreduce", "intercube")])
def test_a_chunk_is_a_message(tmp_path: Path, name: str, topology: str) -> None:
    """Of 4096 bytes: in one piece, in four, in sixteen."""
    counts, times = [], []
    for size in ("4KiB", "1KiB", "256"):
        entry = f"{{module: {name}, topology: {topology}, chunk_size: {size}}}"
        if topology == "intercube":
            entry = intercube(chunk_size=size)
        with context_on(working_machine(), tmp_path, entry) as torch:
            shape = (1024,) if topology == "ring_1d" else (2, 1024)
            begin = torch.engine.now

            def program(rank: int, torch: RuntimeContext = torch, shape: tuple[int, ...] = shape) -> np.ndarray:
                dp = None if len(shape) == 1 else ROW_PER_CUBE
                tensor = torch.full(shape, rank + 1.0, dp=dp)
                torch.distributed.all_reduce(tensor)
                return tensor.numpy()

            for result in run_ranks(torch, program):
                assert set(result.reshape(-1).tolist()) == {3.0 if len(shape) == 1 else 6.0}
            times.append(torch.engine.now - begin)
            records = torch.engine.op_log
            counts.append(sum(each.kind == "ipcq_copy" for each in records))
    assert counts[1:] == [4 * counts[0], 16 * counts[0]]
    assert len(set(times)) == 3


def test_intercube_without_a_topology_uses_the_queues_of_the_machine(tmp_path: Path) -> None:
    entry = INTERCUBE.replace("topology: intercube", "topology: none")
    with context_on(working_machine(), tmp_path, entry) as torch, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reduced(torch, ROWS) == {6}
        assert ran(torch) == ["chosen"]
