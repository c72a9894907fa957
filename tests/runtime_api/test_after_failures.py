"""Whatever fails, whatever comes after it works: the same numbers, the same times, nothing left behind."""

from __future__ import annotations

import pytest
from failure_scenes import (
    AFTERMATHS,
    FAILURES,
    MACHINE,
    N,
    Scene,
    another_launch,
    collectives,
    everything,
    fills_a_queue,
    greet,
    leaves_a_message,
    mine,
    nobody_receives,
    raises_at_once,
    receives_in_vain,
    remains,
    rotate,
    the_same_queues,
)
from machines import RING, run_ranks, working_machine

from covering import covering
from kernbench.ccl.diagnostics import pointer_dump
from kernbench.ccl.install import install_ipcq, uninstall
from kernbench.ccl.loading import load_ccl_config
from kernbench.common.errors import IpcqDeadlock, IpcqError, LimitReached
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext


@pytest.fixture(scope="module")
def ccl(tmp_path_factory):
    file = tmp_path_factory.mktemp("ccl") / "ccl.yaml"
    file.write_text(f"algorithms:\n  chosen: {RING}\n")
    return load_ccl_config(file)


@pytest.fixture(scope="module")
def undisturbed(ccl):
    """What ``everything`` takes on a machine where nothing was before."""
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        return everything(torch)


def fails(scene, failure, program=None):
    """Run a program that goes wrong, in the way that is expected of it."""
    error, usual = FAILURES[failure]
    program = program or usual
    if error is None:
        program(scene)
        return
    with pytest.raises(BaseException) as caught:
        program(scene)
    assert error in (type(caught.value), type(caught.value).__name__), repr(caught.value)


@pytest.mark.parametrize(("failure", "aftermath"), covering(FAILURES, AFTERMATHS))
def test_the_context_can_be_used(ccl, failure, aftermath):
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine, ccl=ccl) as torch:
        scene = Scene(torch)
        fails(scene, failure)
        AFTERMATHS[aftermath](scene)
    assert remains(engine) == []
    assert torch.cleanup_report.leaked == ()


@pytest.mark.parametrize("failure", FAILURES)
def test_the_next_context_finds_the_machine_as_it_was(ccl, undisturbed, failure):
    engine = GraphEngine(MACHINE)

    def in_a_context_of_its_own(_):
        with RuntimeContext(engine, ccl=ccl) as torch:
            FAILURES[failure][1](Scene(torch))

    fails(None, failure, in_a_context_of_its_own)
    engine.machine.do_postponed()
    assert remains(engine) == []
    with RuntimeContext(engine, ccl=ccl) as torch:
        assert everything(torch) == undisturbed


LINE = greet.__code__.co_firstlineno + 1
LEFT = rf"sip0\.cube0\.pe0 E -> sip0\.cube0\.pe1 W: 16 bytes of kernel 'leaves_a_message', line {LINE} of .*scenes\.py"


def test_a_message_that_nobody_received_is_an_error_where_its_queue_goes(ccl):
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        scene = Scene(torch)
        scene.launch(leaves_a_message)
        with pytest.raises(IpcqError, match=LEFT):
            scene.uninstall()
        scene.install()
        rotate(scene, 0)
    [left] = torch.cleanup_report.left
    assert left.startswith("not received: sip0.cube0.pe0 E")


def test_a_message_that_nobody_received_is_an_error_at_the_end_of_the_context(ccl):
    engine = GraphEngine(MACHINE)
    with pytest.raises(IpcqError, match=LEFT), RuntimeContext(engine, ccl=ccl) as torch:
        Scene(torch).launch(leaves_a_message)
    assert len(torch.cleanup_report.left) == 1
    assert remains(engine) == []


@pytest.mark.parametrize("failure", ["nobody_receives", "never_destroys"])
def test_a_send_of_a_rank_that_no_rank_received_is_an_error(ccl, failure):
    line = nobody_receives.__code__.co_firstlineno + 2
    way = rf"sip0\.cube0\.pe0 .* -> sip1\.cube0\.pe0 .*: 16 bytes of kernel 'send_recv'.*_scenes\.py:{line}\)"
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        with pytest.raises(IpcqError, match=way):
            FAILURES[failure][1](Scene(torch))
        collectives(Scene(torch))
    assert sum("not received" in each for each in torch.cleanup_report.left) == 1


@pytest.mark.parametrize("failure", ["raises_at_once", "peer_raises", "fills_a_queue"])
def test_what_a_failure_left_is_not_told_once_more(ccl, failure):
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        fails(Scene(torch), failure)
    assert torch.cleanup_report.left == ()


def test_another_failure_does_not_hide_what_was_left_before(ccl):
    """The program goes on after a kernel has failed; an earlier launch, which ended well, has left a message."""

    def program(scene):
        scene.launch(leaves_a_message)
        with pytest.raises(ZeroDivisionError):
            scene.torch.launch("k", raises_at_once, scene.values(), N)

    with pytest.raises(IpcqError, match=LEFT):
        run(ccl, program)


def test_a_deadlock_does_not_hide_what_was_left_before(ccl):
    def program(scene):
        scene.launch(leaves_a_message)
        with pytest.raises(IpcqDeadlock):
            scene.torch.launch("k", receives_in_vain, scene.values(), N)

    with pytest.raises(IpcqError, match=LEFT):
        run(ccl, program)


def test_what_is_left_does_not_hide_another_failure(ccl):
    seen = []

    def program(scene):
        seen.append(scene.torch)
        scene.launch(leaves_a_message)
        try:
            raise LookupError
        finally:
            scene.uninstall()

    with pytest.raises(LookupError):
        run(ccl, program)
    [left] = seen[0].cleanup_report.left
    assert left.startswith("not received: sip0.cube0.pe0 E")


def test_a_program_that_deals_with_another_failure_is_told_at_its_end(ccl):
    def program(scene):
        scene.launch(leaves_a_message)
        try:
            raise LookupError
        except LookupError:
            scene.uninstall()
        rotate_anew(scene)

    with pytest.raises(IpcqError, match=LEFT):
        run(ccl, program)


def run(ccl, program):
    """In a context of its own."""
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        program(Scene(torch))


def rotate_anew(scene):
    scene.install()
    rotate(scene, 0)


@pytest.mark.parametrize("failure", ["raises_at_once", "peer_raises"])
def test_a_run_that_failed_lists_what_it_has_left(ccl, failure):
    with pytest.raises(BaseException) as caught, RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        FAILURES[failure][1](Scene(torch))
    assert not isinstance(caught.value, IpcqError)
    assert any(each.startswith("not received: sip0.cube0.pe0 ") for each in torch.cleanup_report.left)


def test_a_posted_receive_takes_its_message(ccl):
    """Also when nobody looks at what has come."""

    def posts(x, n, *, tl):
        if tl.program_id(0) == 1:
            tl.recv_async("W", n, "f32")
        leaves_a_message(x, n, tl=tl)

    run(ccl, lambda scene: scene.launch(posts))


def test_groups_one_after_the_other_tell_of_their_own(ccl):
    """Of two groups that nobody destroys the second leaves nothing, and a third is told of the first."""

    def program(rank, leaves):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        if leaves:
            nobody_receives(torch, rank)
        torch.distributed.barrier()

    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        torch.multiprocessing.spawn(program, (True,), nprocs=2)
        with pytest.raises(IpcqError, match=r"^a message was sent and never received"):
            torch.multiprocessing.spawn(program, (False,), nprocs=2)
        torch.multiprocessing.spawn(program, (False,), nprocs=2)
    assert sum("not received" in each for each in torch.cleanup_report.left) == 1


SLOW = working_machine(2, "sip.cube_mesh.w=1", "pe.components.pe_ipcq.attrs.overhead_ns=20000")


def test_a_message_on_its_way_is_left_too(ccl):
    """Its bytes are there, and nobody has taken note of them when its queue goes."""
    with pytest.raises(IpcqError, match=LEFT), RuntimeContext(GraphEngine(SLOW), ccl=ccl) as torch:
        Scene(torch).launch(leaves_a_message)


def test_a_message_on_its_way_does_not_come_to_the_next_queues(ccl):
    with RuntimeContext(GraphEngine(SLOW), ccl=ccl) as torch:
        scene = Scene(torch)
        scene.launch(leaves_a_message)
        with pytest.raises(IpcqError, match=LEFT):
            scene.uninstall()
        assert torch.engine.now < 2 * 20000  # it takes as long to be sent as to be taken note of
        rotate_anew(scene)


def test_a_collective_that_only_its_root_has_called(ccl):
    def program(rank):
        if rank == 0:
            torch.distributed.broadcast(torch.ones(N), 0)

    line = program.__code__.co_firstlineno + 2
    way = rf"of kernel 'broadcast', step .*test_after_failures\.py:{line}\)"
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch, pytest.raises(IpcqError, match=way):
        run_ranks(torch, program)


def test_ranks_of_the_programs_group_leave_messages(ccl):
    """The group stays: it is told when the program ends it, or when other ranks take it over."""
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:

        def program(rank):
            torch.ahbm.set_device(rank)
            nobody_receives(torch, rank)

        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(program, nprocs=2)
        with pytest.raises(IpcqError, match="kernel 'send_recv'"):
            torch.distributed.destroy_process_group()
        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(program, nprocs=2)
        with pytest.raises(IpcqError, match=r"^a message was sent and never received"):
            torch.multiprocessing.spawn(torch.ahbm.set_device, nprocs=2)
        torch.distributed.destroy_process_group()


def test_many_messages_are_told_in_a_few_lines(ccl):
    def leaves_many(x, n, *, tl):
        loaded = tl.load(mine(x, tl), n, "f32")
        for direction in ("E", "W"):
            tl.send(direction, loaded)
            tl.send(direction, loaded)
            for _ in range(2):
                tl.send(direction, loaded)

    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        scene = Scene(torch)
        scene.launch(leaves_many)
        with pytest.raises(IpcqError) as told:
            scene.uninstall()
    text = str(told.value)
    assert text.startswith("32 messages were sent and never received")
    assert text.count("\n") == 9
    assert ", 2 times" in text
    assert text.endswith("and 16 more")
    assert len(torch.cleanup_report.left) == 9


def test_a_message_may_be_received_by_a_later_launch(ccl):
    """Nothing has failed: it is not lost."""

    def receives(x, n, *, tl):
        if tl.program_id(0) == 1:
            tl.store(mine(x, tl), tl.recv("W", n, "f32"))

    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        scene = Scene(torch)
        scene.launch(leaves_a_message)
        x = scene.values(100)
        torch.launch("receives", receives, x, N)
        assert x.tolist() == [*range(100, 104), *range(4), *range(108, 116)]
    assert torch.cleanup_report.left == ()


def test_removing_queues_without_a_context_tells_what_is_lost_too(ccl):
    engine = GraphEngine(MACHINE)
    plan = install_ipcq(engine, world_size=4, ccl=ccl)
    with RuntimeContext(engine, ccl=ccl) as torch:
        torch.launch("k", leaves_a_message, Scene(torch).values(), N)
    with pytest.raises(IpcqError, match=LEFT):
        uninstall(engine, plan.queues)
    assert remains(engine) == []
    with pytest.raises(IpcqError, match="removed already"):
        uninstall(engine, plan.queues)


def test_queues_are_removed_once(ccl):
    with RuntimeContext(GraphEngine(MACHINE), ccl=ccl) as torch:
        plan = torch.install_ipcq()
        torch.uninstall_ipcq(plan)
        with pytest.raises(IpcqError, match="removed already"):
            torch.uninstall_ipcq(plan)
        collectives(Scene(torch))


def pointers(engine, queue="sip0.cube0.pe0 E"):
    [line] = [line for line in pointer_dump(engine).splitlines() if line.strip().startswith(f"{queue} ")]
    return line.partition(": ")[2].partition(";")[0]


def test_pointers_are_shown_as_they_were_at_a_deadlock(ccl):
    engine = GraphEngine(MACHINE)
    full = "my_head=4 my_tail=0 peer_head_cache=0 peer_tail_cache=0"
    with RuntimeContext(engine, ccl=ccl) as torch:
        with pytest.raises(IpcqDeadlock):
            Scene(torch).launch(fills_a_queue)
        assert pointers(engine) == full
        another_launch(Scene(torch))
        assert pointers(engine) == full
    assert pointers(engine) == full
    with RuntimeContext(engine, ccl=ccl) as torch:
        Scene(torch).install()
        assert pointers(engine) == "my_head=0 my_tail=0 peer_head_cache=0 peer_tail_cache=0"


def test_pointers_are_those_of_now_once_the_queues_are_used_again(ccl):
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine, ccl=ccl) as torch:
        scene = Scene(torch)
        with pytest.raises(IpcqDeadlock):
            scene.launch(fills_a_queue)
        rotate(scene, 0)
        assert pointers(engine) == "my_head=1 my_tail=0 peer_head_cache=0 peer_tail_cache=1"


def test_pointers_of_ranks_that_could_not_go_on(ccl):
    engine = GraphEngine(MACHINE)

    def program(rank):
        def kernel(x, *, tl):
            loaded = tl.load(x, N, "f32")
            for _ in range(3 + rank):
                tl.send("global_E", loaded)
            for _ in range(5):
                tl.recv("global_W", N, "f32")

        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        torch.launch("k", kernel, torch.ones(N))

    with RuntimeContext(engine, ccl=ccl) as torch:
        with pytest.raises(IpcqDeadlock):
            torch.multiprocessing.spawn(program, nprocs=2)
        received = pointers(engine, "sip0.cube0.pe0 global_W")
    assert "peer_head_cache=4" in received
    assert pointers(engine, "sip0.cube0.pe0 global_W") == received
    assert pointers(engine, "sip0.cube0.pe0 global_E").startswith("my_head=3 ")
    assert pointers(engine, "sip1.cube0.pe0 global_E").startswith("my_head=4 ")


def interrupted_at_work(torch, events):
    """Products of seconds are under way on some PEs as another one's kernel is interrupted."""

    def kernel(x, *, tl):
        if tl.program_id(0) == 2:
            events.append(torch.engine.n_events)
            raise KeyboardInterrupt
        for _ in range(3):
            tl.composite("gemm", tl.ref(x, (256, 256), "f32"), tl.ref(x, (256, 256), "f32"), x)

    torch.launch("k", kernel, torch.empty((256, 256), dtype="f32", dp=DPPolicy("replicate", "replicate", num_cubes=1)))


@pytest.mark.parametrize("ranks", [False, True])
def test_an_interrupt_costs_no_event_until_the_machine_is_used_again(ccl, undisturbed, ranks):
    engine, events = GraphEngine(MACHINE), []

    def run():
        with RuntimeContext(engine, ccl=ccl) as torch:
            if ranks:
                torch.multiprocessing.spawn(lambda _: interrupted_at_work(torch, events), nprocs=2)
            else:
                interrupted_at_work(torch, events)

    with pytest.raises(KeyboardInterrupt):
        run()
    [before] = events
    assert engine.n_events == before
    with RuntimeContext(engine, ccl=ccl) as torch:
        assert engine.n_events > before
        assert remains(engine) == []
        assert everything(torch) == undisturbed


def test_who_catches_an_interrupt_finds_the_machine_in_order_at_the_next_request(ccl):
    engine, events = GraphEngine(MACHINE), []
    with RuntimeContext(engine, ccl=ccl) as torch:
        with pytest.raises(KeyboardInterrupt):
            interrupted_at_work(torch, events)
        assert [engine.n_events] == events
        scene = Scene(torch)
        another_launch(scene)
        the_same_queues(scene)
    assert remains(engine) == []


def test_an_interrupt_of_the_leaving_itself_gives_the_memory_back(ccl, monkeypatch):
    engine = GraphEngine(MACHINE)

    def impatient(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "abandon", impatient)

    def run():
        with RuntimeContext(engine, ccl=ccl) as torch:
            Scene(torch).launch(leaves_a_message)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not any(memory.hbm.live or memory.tcm.live for memory in engine.used_allocators.values())


@pytest.mark.parametrize("limit_ns", [100, 400, 520])
def test_a_limit_gives_the_memory_back(ccl, limit_ns):
    engine = GraphEngine(MACHINE, limits=Limits(sim_ns=limit_ns))
    with pytest.raises(LimitReached), RuntimeContext(engine, ccl=ccl) as torch:
        Scene(torch).launch(fills_a_queue)
    assert not any(memory.hbm.live for memory in engine.used_allocators.values())
