"""Threads and processes of a program: one thread calls the machine, and one process tells of the run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

from fake_engine import no_kernel

from kernbench.cli.main import main
from kernbench.common.errors import InputError, SecondThreadError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine

HERE = Path(__file__).name


def run_in_thread(function, name="helper"):
    """Run ``function`` in a thread to its end; return what it raised."""
    raised = []

    def run():
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, name=name)
    thread.start()
    thread.join()
    return raised


def test_a_second_thread_is_refused_at_its_line(torch, engine):
    x = torch.zeros(4)
    now, n_requests = engine.now, len(torch.traces)
    calls = {
        "RuntimeContext.launch": lambda: torch.launch("k", no_kernel, x),
        "TensorFactories.zeros": lambda: torch.zeros(4),
        "Tensor.numpy": x.numpy,
        "Tensor.copy_": lambda: x.copy_(1),
        "RuntimeContext.drain": torch.drain,
        "Ahbm.current_device": torch.ahbm.current_device,
    }
    for called, call in calls.items():
        (error,) = run_in_thread(lambda call=call: call())
        assert type(error) is SecondThreadError
        assert isinstance(error, InputError)
        assert HERE in str(error).partition(": ")[0]
        assert f": thread 'helper' calls {called} (`" in str(error)
        assert "thread 'MainThread' has called the machine before" in str(error)
    assert (engine.now, len(torch.traces)) == (now, n_requests)
    torch.launch("k", no_kernel, x)


def test_eight_threads_are_refused_and_change_nothing(torch):
    x = torch.zeros(4)
    with ThreadPoolExecutor(8) as pool:
        errors = [pool.submit(torch.launch, "k", no_kernel, x).exception() for _ in range(80)]
    assert {type(error) for error in errors} == {SecondThreadError}
    assert [trace.phase for trace in torch.traces].count("launch") == 0


def test_one_thread_may_call_the_machine_whichever_it_is(machine):
    with RuntimeContext(GraphEngine(machine)) as torch:
        call_in_threads(torch)


def call_in_threads(torch):
    seen = []

    def work():
        x = torch.zeros(4)
        torch.launch("k", no_kernel, x)
        seen.append(x.numpy().tolist())
        torch.multiprocessing.spawn(seen.append, nprocs=2)
        torch.launch("k", no_kernel, x, async_op=True)

    assert run_in_thread(work) == []
    assert seen == [[0, 0, 0, 0], 0, 1]
    assert run_in_thread(work, "after it") == []  # the first one has ended
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
        (error,) = run_in_thread(work)
        assert type(error) is SecondThreadError
        torch.drain()  # who has made the context ends it
        assert type(pool.submit(work).exception()) is SecondThreadError


def test_what_others_do_beside_the_machine_is_their_own(torch):
    """They read, and compute with what the program has fetched."""
    x = torch.ones(4)
    fetched = x.numpy()
    with ThreadPoolExecutor(2) as pool:
        assert [pool.submit(lambda n=n: fetched.sum() + n).result() for n in range(3)] == [4, 5, 6]
        assert pool.submit(lambda: (x.shape, x.nbytes, x.name)).result() == (x.shape, x.nbytes, x.name)


REFUSED = """
from threading import Thread
def run(torch):
    torch.zeros(4)
    thread = Thread(target=lambda:
        torch.zeros(8), name="helper")
    thread.start()
    thread.join()
    print("goes on")
def fails(torch):
    run(torch)
    raise ValueError("of the program")
def other(torch):
    torch.zeros(4)
    thread = Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
"""


def test_a_program_whose_thread_was_refused_has_failed(tmp_path, capsys, monkeypatch):
    program = tmp_path / "threads.py"
    program.write_text(REFUSED, encoding="utf-8")
    sentence = f"{program}:6: thread 'helper' calls TensorFactories.zeros ("
    assert main(["run", "--bench", str(program)]) == 2
    printed, said = capsys.readouterr()
    assert "goes on" in printed
    assert said.splitlines()[-1].startswith(f"error: {sentence}")
    assert "Traceback" not in said
    assert main(["run", "--bench", f"{program}:fails"]) == 1
    last = capsys.readouterr().err.splitlines()[-3:]
    assert last[0] == "error: ValueError: of the program"
    assert any(line.startswith(f"  {sentence}") for line in last)
    hooked = []
    monkeypatch.setattr(threading, "excepthook", hooked.append)
    assert main(["run", "--bench", f"{program}:other"]) == 0  # as Python does
    assert [args.exc_type for args in hooked] == [ZeroDivisionError]


FORKS = """
import multiprocessing, os, sys
def run(torch):
    x = torch.ones(4, dtype="f32")
    for end in (None, 3, ValueError("of a child")):
        child = os.fork()
        if not child:
            print("child", float(x.numpy().sum()))
            if isinstance(end, ValueError):
                raise end
            return sys.exit(end) if end else "a text for the report"
        print("parent", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    process = multiprocessing.get_context("fork").Process(target=lambda: print("process", x.numpy().tolist()))
    process.start()
    process.join()
"""


def test_a_process_that_the_program_forks_tells_nothing_of_the_run(tmp_path, capfd):
    program = tmp_path / "forks.py"
    program.write_text(FORKS, encoding="utf-8")
    assert main(["run", "--bench", str(program), "--data", "--op-log", str(tmp_path / "log.jsonl")]) == 0
    printed, said = capfd.readouterr()
    assert printed.count("ns simulated") == 1
    assert "a text for the report" not in printed
    told = [line for line in printed.splitlines() if line.startswith(("child", "parent", "process"))]
    assert told == [
        *("child 4.0", "parent 0", "child 4.0", "parent 3", "child 4.0", "parent 1"),
        "process [1.0, 1.0, 1.0, 1.0]",
    ]
    line = 1 + FORKS.splitlines().index("                raise end")
    assert f"error in a forked process: ValueError: of a child\n  at {program}:{line}\n" in said
    assert said.count("wrote ") == 1
