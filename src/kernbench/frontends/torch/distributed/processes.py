"""Ranks of PyTorch programs: threads that have what PyTorch and programs store for a process.

``spawn`` and ``start_processes`` of ``torch.multiprocessing`` run ranks in simulated time. A rank imports the program's
own files anew, as a spawned process does, and receives copies of its arguments.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing.context
import pickle
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.common.program_line import is_program
from kernbench.common.values import value
from kernbench.frontends.torch.device_names import see_as_program
from kernbench.frontends.torch.distributed.meetings import Meetings, meetings
from kernbench.frontends.torch.distributed.worlds import world_of_rank
from kernbench.frontends.torch.generators import HostGenerator
from kernbench.frontends.torch.modules import program_place, track_modules_of_rank
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import replace
from kernbench.runtime_api.collective_pes import collective_pes
from kernbench.runtime_api.context import AnyContext, RuntimeContext, current_context
from kernbench.runtime_api.multiprocessing import ProcessContext
from kernbench.runtime_api.rank_process import MAIN, PYTHON, GeneratorState, RankProcess

SPAWNED_MAIN = "__mp_main__"
"""The name of the program in ranks that it spawns; ``if __name__ == "__main__"`` is false there, as in Python"""
ADDRESS, PORT = "127.0.0.1", "29500"

# what PyTorch stores for a process


def _make_torch_generator() -> GeneratorState:
    default = torch.default_generator
    first = HostGenerator().get_state()  # that of a new process
    return GeneratorState(
        lambda: HostGenerator.get_state(default), lambda x: HostGenerator.set_state(default, x), torch.equal, first
    )


def _equal_states(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    inner, other = a["state"], b["state"]
    rest = ("has_gauss", "gauss")
    is_same = inner["pos"] == other["pos"] and all(a[name] == b[name] for name in rest)
    return is_same and bool(np.array_equal(inner["key"], other["key"]))


_NUMPY = GeneratorState(lambda: np.random.get_state(legacy=False), np.random.set_state, _equal_states)
_GENERATORS = (PYTHON, _NUMPY, _make_torch_generator())


@contextmanager
def _in_rank() -> Iterator[None]:
    """Set what PyTorch stores for a thread, in the thread of a rank."""
    track_modules_of_rank()
    torch.autograd.set_multithreading_enabled(False)  # backward and its hooks run in the thread of the rank
    with see_as_program(), world_of_rank():
        yield
        current().accelerator.synchronize()  # the program waits for its launches before it ends
        if dist.is_initialized():
            dist.destroy_process_group()
        meetings().leave()


def rank_process(folder: Path | None = None, *, n_ranks: int | None = None) -> RankProcess:
    """Return the parts of a process that each rank of a PyTorch program has.

    ``folder``: that of the program, whose modules each rank imports. ``n_ranks``: set the variables of torchrun.
    """

    def variables(rank: int) -> Mapping[str, str]:
        return {} if n_ranks is None else torchrun_variables(rank, n_ranks)

    context = current()
    pes = collective_pes(context.frontends.torch, context.topology)  # a wrong setting is reported before ranks start
    context.rank_local.put(Meetings(pes.name))  # the ranks inherit it
    return RankProcess(around=_in_rank, variables=variables, generators=_GENERATORS, folder=folder)


def torchrun_variables(rank: int, n_ranks: int) -> Mapping[str, str]:
    """Return the environment variables that ``torchrun --standalone`` sets for a rank."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = dict.fromkeys(["WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"], n_ranks)
    run = {"GROUP_WORLD_SIZE": 1, "ROLE_NAME": "default", "MASTER_ADDR": ADDRESS, "MASTER_PORT": PORT}
    elastic = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    return {name: str(text) for name, text in {**numbers, **sizes, **run, **elastic, "OMP_NUM_THREADS": 1}.items()}


# functions and arguments of ranks


@value
class _Importable:
    """A function of a script, by its module and name, and the script."""

    module: str
    name: str
    script: Path

    @staticmethod
    def of(function: Callable[..., object], script: Path | None) -> _Importable | None:
        """Return where a spawned process would import a function from; None for a function that it could not.

        ``script``: the file that runs as the program, if any.
        """
        if script is None or not isinstance(function, FunctionType) or "<" in function.__qualname__:
            return None
        is_own = script.parent in Path(function.__code__.co_filename).resolve().parents
        return _Importable(function.__module__, function.__qualname__, script) if is_own else None

    def load(self) -> Callable[..., object]:
        """Import the program in this rank, and return its function."""
        main = ModuleType(SPAWNED_MAIN)
        main.__dict__.update(runpy.run_path(str(self.script), run_name=SPAWNED_MAIN))
        sys.modules[MAIN] = sys.modules[SPAWNED_MAIN] = main
        owner: Any = main if self.module in (MAIN, SPAWNED_MAIN) else importlib.import_module(self.module)
        for name in self.name.split("."):
            owner = vars(owner)[name]
        function: Callable[..., object] = owner
        return function


class _ArgumentPickler(pickle.Pickler):
    """A pickler of arguments. Tensors are not copied, since processes would share them."""

    def __init__(self, file: io.BytesIO, shared: list[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_id(self, obj: object) -> int | None:
        """Return the number of an object that is not copied."""
        if not isinstance(obj, Tensor | RuntimeContext):
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _ArgumentUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> object:
        """Return an object that was not copied."""
        return self._shared[pid]


def _copier_of(argument: object) -> Callable[[], object]:
    """Return a function that returns a copy of an argument, made in a rank; the argument itself if it has no copy."""
    shared: list[object] = []
    file = io.BytesIO()
    try:
        _ArgumentPickler(file, shared).dump(argument)
    except Exception:  # such as a queue, which processes share
        return lambda: argument
    return lambda: _ArgumentUnpickler(io.BytesIO(file.getvalue()), shared).load()


def _as_spawned(
    function: Callable[..., object], args: Sequence[object], script: Path | None
) -> tuple[Callable[..., object], Path | None]:
    """Return a function that runs ``function`` in a rank as a spawned process would, and the folder of the program."""
    importable = _Importable.of(function, script)
    if importable is None:
        return lambda rank: function(rank, *args), None
    copiers = [_copier_of(argument) for argument in args]

    @wraps(function)
    def run(rank: int) -> object:
        loaded = importable.load()
        return loaded(rank, *[copy() for copy in copiers])

    return run, importable.script.parent


# torch.multiprocessing


def _spawn(
    context: AnyContext,
    fn: Callable[..., object],
    args: Sequence[object],
    nprocs: int,
    *,
    join: bool,
    daemon: bool,
    start_method: str,
) -> ProcessContext | None:
    if context.multiprocessing.is_rank:
        raise InputError(
            f"{program_place()}: a rank cannot spawn ranks. The file of a program runs again in each rank that it "
            'spawns: put what only the program does under if __name__ == "__main__":'
        )
    function, folder = fn, None
    if callable(fn) and isinstance(args, tuple | list):
        is_fork = start_method == "fork"
        function, folder = (lambda rank: fn(rank, *args), None) if is_fork else _as_spawned(fn, args, context.script)
        args = ()
    return context.multiprocessing.spawn(
        function, tuple(args), nprocs, join, daemon, start_method, process=rank_process(folder)
    )


def _install_spawn() -> None:
    """Run ranks in simulated time while a program runs on the machine."""
    start_elsewhere = vars(torch.multiprocessing)["start_processes"]

    def start_processes(
        fn: Callable[..., object],
        args: tuple[object, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> object:
        context = current_context()
        if context is None:
            return start_elsewhere(fn, args, nprocs, join, daemon, start_method)
        return _spawn(context, fn, args, nprocs, join=join, daemon=daemon, start_method=start_method)

    def spawn(
        fn: Callable[..., object],
        args: tuple[object, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> object:
        if start_method != "spawn":
            warnings.warn("spawn has the start method 'spawn'; use start_processes", FutureWarning, stacklevel=2)
        return start_processes(fn, args, nprocs, join, daemon)

    replace(torch.multiprocessing, "start_processes", start_processes)
    replace(torch.multiprocessing, "spawn", spawn)


def _refuse_process() -> NoReturn:
    raise InputError(
        f"{program_place()}: a Process of torch.multiprocessing has no machine; run ranks by "
        "torch.multiprocessing.spawn(fn, args, nprocs=N), or start the script once for each rank with --ranks N"
    )


def _is_called_by_program() -> bool:
    """Return whether a line of the program, and no library such as DataLoader, calls the caller of this function."""
    return is_program(Path(sys._getframe(2).f_code.co_filename))  # noqa: SLF001 - documented, public in all but name


def _refusing(process: Any) -> Callable[..., Any]:
    """Return a function that creates a process, unless the program calls it while it runs on the machine."""

    @wraps(process, updated=())
    def create(*args: object, **options: object) -> Any:
        if current_context() is not None and _is_called_by_program():
            _refuse_process()
        return process(*args, **options)

    return create


def _install_processes() -> None:
    """Refuse processes of ``torch.multiprocessing`` that the program itself creates: they would have no machine."""
    replace(torch.multiprocessing, "Process", _refusing(torch.multiprocessing.Process))
    find_context = torch.multiprocessing.get_context

    def get_context(method: str | None = None) -> multiprocessing.context.BaseContext:
        plain: Any = find_context(method)
        if current_context() is None:
            return plain  # type: ignore[no-any-return]
        kind = type(plain)
        names = {"Process": staticmethod(_refusing(plain.Process))}
        context: Any = type(kind.__name__, (kind,), names)
        return context(*([plain] if kind is multiprocessing.context.DefaultContext else []))  # type: ignore[no-any-return]

    replace(torch.multiprocessing, "get_context", get_context)


def install() -> None:
    """Replace the functions of ``torch.multiprocessing`` that create ranks."""
    _install_spawn()
    _install_processes()
