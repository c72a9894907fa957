"""Pipelines of ``torch.distributed.pipelining`` in ranks: they run unchanged, and the report has their bubbles."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch.distributed as dist

from kernbench.frontends.torch.distributed.importing import change_module
from kernbench.frontends.torch.distributed.joining import is_rank
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import replace
from kernbench.runtime_api.rank_report import PipelineKey

_SCHEDULES = "torch.distributed.pipelining.schedules"


def _note_steps(step: Callable[..., Any], stage_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the function of a schedule that runs a step, changed to note the step of a rank for the report."""

    @wraps(step)
    def call(schedule: Any, *args: Any, **named: Any) -> Any:
        if not is_rank():
            return step(schedule, *args, **named)
        context = current()
        first = len(context.engine.handles)
        result = step(schedule, *args, **named)
        ranks = tuple(dist.get_process_group_ranks(stage_of(schedule).group))
        key = PipelineKey(type(schedule).__name__, ranks, schedule._n_microbatches)  # noqa: SLF001 - it has no other
        requests = range(first, len(context.engine.handles))
        context.rank_notes.note_step(key, context.distributed.get_rank(), requests)
        return result

    return call


def _change_schedules(module: ModuleType) -> None:
    stages: dict[str, Callable[[Any], Any]] = {
        "PipelineScheduleSingle": lambda schedule: schedule._stage,  # noqa: SLF001
        "PipelineScheduleMulti": lambda schedule: schedule._stages[0],  # noqa: SLF001
    }
    for name, stage_of in stages.items():
        schedule = vars(module)[name]
        replace(schedule, "step", _note_steps(vars(schedule)["step"], stage_of))


def install() -> None:
    """Note the steps of schedules. Programs import them late; importing them here would take seconds."""
    change_module(_SCHEDULES, _change_schedules)
