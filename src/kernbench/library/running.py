"""Run a program on a machine: the request, the observed simulation, and its result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, TypeAlias

import kernbench.benches
from kernbench.common.complaints import one_of, show
from kernbench.common.errors import BenchError, InputError, RunError, text_of
from kernbench.common.late import late
from kernbench.library.machines import MachineLike, Overrides, load_machine
from kernbench.library.progress import OnProgress, ProgressWatch
from kernbench.library.runs import Run
from kernbench.result import run_sections as of
from kernbench.result import simulation
from kernbench.result.sections import RunOutcome
from kernbench.runtime_api.bench_registry import Bench, load_bench
from kernbench.runtime_api.bench_runner import as_bench
from kernbench.runtime_api.overrides import BENCH_PREFIX, FRONTEND_PREFIXES, part_of
from kernbench.runtime_api.prepared_run import PreparedRun, prepare_run
from kernbench.runtime_api.run_request import LOG_ROWS, SAMPLES, RankCount, RunRequest

# Importing the package registers its benches.
BENCHES = kernbench.benches.__name__
GUARD = "kernbench.observe.guard"
ADVICE = "kernbench.evaluation.advice"
Program: TypeAlias = "str | os.PathLike[str] | Bench | Callable[[Any], object]"
"""A bench name, ``file.py[:function]``, ``module:function``, a bench, or a function of one argument"""


def run(
    program: Program | None = None,
    machine: MachineLike = None,
    *,
    script: str | os.PathLike[str] | None = None,
    args: Sequence[object] = (),
    as_cuda: bool = False,
    ranks: RankCount | None = None,
    points: int | None = None,
    params: Mapping[str, object] | None = None,
    verify: bool = False,
    data: bool | None = None,
    overrides: Overrides | None = None,
    settings: Mapping[str, object] | None = None,
    device: str = "all",
    ccl: str | os.PathLike[str] | None = None,
    observe: bool = True,
    advise: bool = False,
    reuse: bool = False,
    reuse_samples: int = SAMPLES,
    reuse_check: int = 0,
    max_sim_ns: float | None = None,
    max_wall_s: float | None = None,
    log_rows: int | str = LOG_ROWS,
    on_progress: OnProgress | None = None,
    **keywords: object,
) -> Run:
    """Run a program on a machine.

    ``program``: a bench name, ``file.py[:function]``, ``module:function``, a function of one argument, or a bench.
    ``script``, in place of it: a file that runs as ``python FILE ARGS`` does, with the arguments ``args``. ``as_cuda``:
    the PyTorch device "cuda" of the script is the machine. ``ranks``: run the script once for each of so many ranks, as
    torchrun does; ``"all"``: one for each SIP. ``points``: the number of x values of a Triton benchmark.
    ``params`` or keywords: parameters of the bench. ``machine`` and ``overrides``: as for ``load_machine``.
    ``verify``: compute values and check them. ``data``: record values, so that the program can read them; by default as
    the bench declares. ``settings``: settings of the PyTorch and Triton front ends, as for ``--set``:
    ``{"torch.cubes": 4}``. ``device``: ``all``, or one SIP as ``sip:0``. ``ccl``: the file that configures collectives.
    ``observe``: record the causes of the time. ``advise``: simulate the gain of machine changes on copies of the
    machine. ``reuse``: with ``data=False``, simulate ``reuse_samples`` launches of each kind, and let the time of
    others pass; ``reuse_check`` more launches are simulated to measure the error. ``max_sim_ns``, ``max_wall_s``:
    limits in simulated ns and in seconds of real time; none by default, also for a script. ``log_rows``: beyond so many
    rows of the log, such as ``"500K"``, fold the rows of launches that are over. ``on_progress`` is called with a
    RunProgress twice a second, from a separate thread; ``kb.ProgressDisplay()`` shows a bar.

    An error of the program is not raised: it is in the result, whose ``raise_for_status`` raises it. Ctrl-C ends the
    run, and the result contains the finished work. Raises InputError for an invalid program, machine or parameter.
    """
    if not isinstance(device, str):
        raise InputError(f"device: found {show(device)}, must be all, or one SIP as sip:0")
    if advise and not observe:
        raise InputError("advise needs an observed run: remove observe=False")
    request = RunRequest.of(
        **script_choices(program, script, args, as_cuda=as_cuda, ranks=ranks),
        points=points,
        params=param_texts(params or {}, keywords),
        settings=setting_texts(settings or {}),
        device=device,
        ccl=ccl,
        data=data,
        verify=verify,
        max_sim_ns=max_sim_ns,
        max_wall_s=max_wall_s,
        log_rows=log_rows,
        observe=observe,
        advise=advise,
        reuse=reuse,
        reuse_samples=reuse_samples,
        reuse_check=reuse_check,
    )
    bench = None if program is None else find_program(program)
    if bench is not None and points is not None and "points" in bench.params.model_fields:
        raise InputError("points: the bench has a parameter of this name; give it in params={'points': …}")
    topology = load_machine(machine, overrides=overrides).topology
    return simulate(prepare_run(request, bench=bench, machine=topology), on_progress)


def script_choices(
    program: Program | None,
    script: str | os.PathLike[str] | None,
    args: Sequence[object],
    *,
    as_cuda: bool,
    ranks: RankCount | None = None,
) -> dict[str, Any]:
    """Return the choices of a script for a RunRequest. Raises InputError unless there is one program or script."""
    if program is None and script is None:
        raise InputError("there is no program: give a bench, a file or a function, or script=FILE")
    if program is not None and script is not None:
        raise InputError("program and script: give one of them")
    if not isinstance(script, str | os.PathLike | None):
        raise InputError(f"script: found {show(script)}, must be the file of a script")
    choices: dict[str, Any] = {"as_cuda": as_cuda, "args": args, "ranks": ranks}
    refused = [name for name, choice in choices.items() if choice]
    if script is None and refused:
        raise InputError(f"{refused[0]}: only a script takes it; give script=FILE")
    if ranks not in (None, "all") and (not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1):
        raise InputError(f"ranks: found {show(ranks)}, must be a number from 1, or 'all' for one of each SIP")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InputError(f"args: found {show(args)}, must be a list of the script's arguments")
    file = None if script is None else os.fspath(script)
    choices = {"script": file, "args": tuple(map(str, args)), "as_cuda": as_cuda}
    return choices if ranks is None else {**choices, "ranks": ranks}


def find_program(program: Program) -> Bench:
    """Return the bench of a program. Raises UnknownNameError, with the available names, or BenchError."""
    if isinstance(program, str | os.PathLike):
        bench = load_bench(os.fspath(program))
    else:
        bench = as_bench(program)
        bench = replace(bench, name=program.__name__) if isinstance(program, FunctionType) else bench
    if bench.evaluation:
        raise BenchError(f"{bench.name!r} is an evaluation, which makes many runs: kernbench run --bench")
    return bench


def param_texts(params: Mapping[str, object], keywords: Mapping[str, object]) -> list[str]:
    """Return ``bench.NAME=VALUE`` texts. Raises InputError for a duplicate name or a value that YAML cannot store."""
    if not isinstance(params, Mapping):
        raise InputError(f"params: found {show(params)}, must be a mapping of names to values")
    twice = [name for name in keywords if name in params]
    if twice:
        raise InputError(f"{', '.join(twice)}: given as a keyword and in params; give it once")
    return [_text_of(name, content, BENCH_PREFIX) for name, content in {**params, **keywords}.items()]


def setting_texts(settings: Mapping[str, object]) -> list[str]:
    """Return frontend settings as texts for ``--set``. Raises InputError for unknown names."""
    if not isinstance(settings, Mapping):
        raise InputError(f"settings: found {show(settings)}, must be a mapping of names such as torch.cubes to values")
    for name in settings:
        if not isinstance(name, str) or part_of(name) != "frontends":
            raise InputError(
                f"settings: {show(name)} is no frontend setting, which begins with one of: "
                f"{one_of(FRONTEND_PREFIXES)}; put machine values into overrides and bench parameters into params"
            )
    return [_text_of(name, content) for name, content in settings.items()]


def _text_of(name: str, content: object, prefix: str = "") -> str:
    try:
        return f"{prefix}{name}={json.dumps(content)}"
    except TypeError as error:
        raise InputError(f"{name}: found {show(content)}, must be a number, a text, a list or a mapping") from error


def simulate(request: PreparedRun, on_progress: OnProgress | None = None) -> Run:
    """Run a prepared program until it ends or the user interrupts it. Raises InputError for invalid inputs."""
    watch = None if on_progress is None else ProgressWatch(request.bench.name, on_progress, request.limits.wall_s)
    finished = simulation.simulate(request, watch)
    outcome = RunOutcome(finished)
    is_complete = finished.result is not None and finished.result.error is None and not finished.is_interrupted
    return Run(_with_advice(outcome, request) if request.advise and is_complete else outcome)


def _with_advice(outcome: RunOutcome, request: PreparedRun) -> RunOutcome:
    """Return the outcome with advice: run the program again with ``refresh: spread``, and on faster machines."""
    try:
        with late(GUARD, "guarded")("advice"):
            advice = late(ADVICE, "advise_program")(request)
    except KeyboardInterrupt:  # the result of the program itself is complete
        ending = outcome[of.ENDING]
        return outcome.with_content(of.ENDING, replace(ending, status="INTERRUPTED", exit_code=of.INTERRUPTED))
    except RunError as error:
        operators = outcome[of.OPERATORS]
        remarks = (*operators.remarks, f"no advice: {text_of(error)}")
        return outcome.with_content(of.OPERATORS, replace(operators, remarks=remarks))
    return outcome.with_content(late(ADVICE, "ADVICE"), advice)
