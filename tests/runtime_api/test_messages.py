"""Messages between ranks: whatever is posted before a wait ends, in any order and size, with the right numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines import RING, context_on, run_ranks, working_machine

from kernbench.common.errors import InputError, IpcqDeadlock
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException

ROWS = DPPolicy(pe="row_wise", num_cubes=1)
FULL_QUEUE = 6 * 4 * 1024
"""Elements of f32 of which each of the four PEs of a cube sends six messages: its queue has four slots."""


@dataclass(frozen=True)
class Message:
    """Message number ``number`` of ``size`` elements from rank ``src`` to rank ``dst``."""

    src: int
    dst: int
    size: int
    number: int = 0

    @property
    def first(self) -> int:
        """The first element: no two messages of a program begin with the same."""
        return self.src + 7 * self.dst + 50 * self.number

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The elements."""
        return (self.first + np.arange(self.size) % 251).astype(np.float32)


def exchange(
    torch: Any, rank: int, posts: Sequence[tuple[str, Message]], wait_order: Callable[[list[Any]], None] = list.reverse
) -> None:
    """Post all sends and receives of a rank in order, wait for them in another, and compare what has come."""
    dist, works, received = torch.distributed, [], []
    tensors = [
        torch.tensor(message.values, dp=ROWS) if way == "send" else torch.empty(message.size, dp=ROWS)
        for way, message in posts
    ]
    for (way, message), tensor in zip(posts, tensors, strict=True):
        if way == "send":
            works.append(dist.isend(tensor, message.dst))
        else:
            works.append(dist.irecv(tensor, message.src))
            received.append((message, tensor))
    wait_order(works)
    for work in works:
        work.wait()
    for message, tensor in received:
        np.testing.assert_array_equal(tensor.numpy(), message.values, err_msg=f"rank {rank}: {message}")


def posts_of(rank: int, messages: Sequence[Message], *, first: str = "send") -> list[tuple[str, Message]]:
    """Return the posts of a rank: all of one way, then all of the other."""
    posts = [("send", each) for each in messages if each.src == rank]
    posts += [("receive", each) for each in messages if each.dst == rank]
    return sorted(posts, key=lambda post: post[0] != first)


def run_exchange(torch: Any, posts: Callable[[int], Sequence[tuple[str, Message]]], **options: Any) -> None:
    run_ranks(torch, lambda rank: exchange(torch, rank, posts(rank), **options))


@pytest.mark.parametrize("size", [1, 256, FULL_QUEUE])
@pytest.mark.parametrize("orders", [("send", "send"), ("receive", "receive"), ("send", "receive")])
def test_pairs_end_in_either_order_and_size(tmp_path, orders, size):
    pair = [Message(0, 1, size), Message(1, 0, size)]
    with context_on(working_machine(), tmp_path, RING) as torch:
        run_exchange(torch, lambda rank: posts_of(rank, pair, first=orders[rank]))


@pytest.mark.parametrize("sizes", [(1, FULL_QUEUE), (FULL_QUEUE, 1)])
def test_pairs_of_different_sizes_end(tmp_path, sizes):
    pair = [Message(0, 1, sizes[0]), Message(1, 0, sizes[1])]
    with context_on(working_machine(), tmp_path, RING) as torch:
        run_exchange(torch, lambda rank: posts_of(rank, pair), wait_order=lambda works: None)


RINGS = {"one way": (1,), "both ways": (1, -1)}


@pytest.mark.parametrize("ways", list(RINGS))
@pytest.mark.parametrize("ranks", [3, 4])
def test_rings_end(tmp_path, ranks, ways):
    messages = [Message(rank, (rank + way) % ranks, FULL_QUEUE) for way in RINGS[ways] for rank in range(ranks)]
    with context_on(working_machine(ranks), tmp_path, RING) as torch:
        run_exchange(torch, lambda rank: posts_of(rank, messages, first="send" if rank % 2 else "receive"))


def random_posts(ranks: int, seed: int, sizes: Sequence[int]) -> list[list[tuple[str, Message]]]:
    """Return what each rank posts, in an order of its own; messages from one rank to another keep their order."""
    draw = random.Random(seed)
    pairs = [draw.sample(range(ranks), 2) for _ in range(draw.randint(2, 4 * ranks))]
    messages = [Message(src, dst, draw.choice(sizes), number) for number, (src, dst) in enumerate(pairs)]
    posts: list[list[tuple[str, Message]]] = []
    for rank in range(ranks):
        lines: dict[tuple[str, int], list[tuple[str, Message]]] = {}
        for way, message in posts_of(rank, messages):
            peer = message.dst if way == "send" else message.src
            lines.setdefault((way, peer), []).append((way, message))
        posts.append([])
        while left := [line for line in lines.values() if line]:
            posts[rank].append(draw.choice(left).pop(0))
    return posts


def send_both(torch: Any, rank: int) -> None:
    """Send more than a queue takes before the other rank's message is received."""
    tensor = torch.full((FULL_QUEUE,), rank, dp=ROWS)
    torch.distributed.send(tensor, 1 - rank)
    torch.distributed.recv(tensor, 1 - rank)


def test_two_blocking_sends_say_which_queues_are_full(tmp_path):
    with context_on(working_machine(), tmp_path, RING) as torch, pytest.raises(IpcqDeadlock) as deadlock:
        run_ranks(torch, lambda rank: send_both(torch, rank))
    text = str(deadlock.value)
    assert "every PE of the cycle sends while its own messages wait to be received: receive in between. Full: " in text
    assert "queue sip0 of sip1.cube0.pe0 (4 slots of 4096 bytes)" in text
    assert "who waits for whom: sip0.cube0.pe0 -> sip1.cube0.pe0 -> sip0.cube0.pe0" in text
    assert "rank 0 waits for send_recv(f32[24576], src=0, dst=1), number 0, which rank 1 never joined" in text


def test_a_deadlock_goes_through_any_kernel_of_a_pe(tmp_path):
    def program(rank: int) -> None:
        dist, tensor = torch.distributed, torch.zeros(FULL_QUEUE, dp=ROWS)
        if rank == 0:
            sent, received = dist.isend(tensor, 1), dist.irecv(torch.empty(1, dp=ROWS), 2)
            received.wait()
            sent.wait()
            dist.send(torch.zeros(1, dp=ROWS), 2)
        elif rank == 2:
            dist.recv(torch.empty(1, dp=ROWS), 0)
            dist.send(torch.zeros(1, dp=ROWS), 0)

    with context_on(working_machine(3), tmp_path, RING) as torch, pytest.raises(IpcqDeadlock) as deadlock:
        run_ranks(torch, program)
    text = str(deadlock.value)
    assert "who waits for whom: sip0.cube0.pe0 -> sip2.cube0.pe0 -> sip0.cube0.pe0" in text
    waits = next(line for line in text.splitlines() if line.startswith("  sip0.cube0.pe0: "))
    assert "waits for a slot of queue sip1" in waits
    assert "all 4 slots of queue sip0 of sip1.cube0.pe0 are taken" in waits
    assert "no message from queue sip0 of sip2.cube0.pe0" in waits


def test_messages_go_on_after_a_rank_has_failed(tmp_path):
    def failing(rank: int) -> None:
        works = [torch.distributed.isend(torch.zeros(FULL_QUEUE, dp=ROWS), 1 - rank)]
        if rank == 1:
            torch.distributed.cooperative_yield()
            raise ValueError("rank 1 gives up")
        works.append(torch.distributed.irecv(torch.zeros(FULL_QUEUE, dp=ROWS), 1 - rank))
        works[1].wait()
        works[0].wait()

    pair = [Message(0, 1, FULL_QUEUE), Message(1, 0, FULL_QUEUE)]
    with context_on(working_machine(), tmp_path, RING) as torch:
        with pytest.raises(SpawnException, match="rank 1 gives up"):
            run_ranks(torch, failing)
        run_exchange(torch, lambda rank: posts_of(rank, pair))


def test_one_tensor_is_sent_to_several_ranks_at_once(tmp_path):
    """Two sends of a tensor are under way together, though a host that reads or overwrites it waits for both."""

    def program(rank: int) -> list[float]:
        dist, mine = torch.distributed, torch.full((FULL_QUEUE,), rank, dp=ROWS)
        theirs = {peer: torch.empty(FULL_QUEUE, dp=ROWS) for peer in range(3) if peer != rank}
        works = [dist.isend(mine, peer) for peer in theirs]
        works += [dist.irecv(tensor, peer) for peer, tensor in theirs.items()]
        mine.copy_(np.full(FULL_QUEUE, -1.0))
        for work in works:
            assert work.is_completed() or work.wait()
        return [tensor[FULL_QUEUE - 1].item() for tensor in theirs.values()]

    with context_on(working_machine(3), tmp_path, RING) as torch:
        assert run_ranks(torch, program) == [[1, 2], [0, 2], [0, 1]]


def test_a_batch_is_posted_in_order(tmp_path):
    def program(rank: int) -> list[float]:
        dist, mine = torch.distributed, torch.full((FULL_QUEUE,), rank, dp=ROWS)
        first, second = (torch.empty(size, dp=ROWS) for size in (FULL_QUEUE, 8))
        small = torch.full((8,), rank + 10, dp=ROWS)
        messages = [(dist.isend, mine), (dist.isend, small), (dist.irecv, first), (dist.irecv, second)]
        works = dist.batch_isend_irecv([dist.P2POp(op, tensor, 1 - rank) for op, tensor in messages])
        for work in works:
            work.wait()
        return [first[FULL_QUEUE - 1].item(), second[7].item()]

    with context_on(working_machine(), tmp_path, RING) as torch:
        assert run_ranks(torch, program) == [[1, 11], [0, 10]]


def test_a_batch_is_of_isend_and_irecv(tmp_path):
    def program(rank: int) -> None:
        dist = torch.distributed
        with pytest.raises(InputError, match="must be isend or irecv of torch"):
            dist.batch_isend_irecv([dist.P2POp(dist.send, torch.zeros(1), 1 - rank)])

    with context_on(working_machine(), tmp_path, RING) as torch:
        run_ranks(torch, program)


def span_of_messages(torch: Any, messages: Sequence[Message]) -> float:
    """Run messages whose ranks begin together; return the time from the first start of one to the last end."""

    def program(rank: int) -> None:
        dist, works = torch.distributed, []
        tensors = [torch.zeros(message.size, dp=ROWS) for message in messages]
        dist.barrier()
        for way, message in posts_of(rank, messages):
            tensor = tensors[messages.index(message)]
            works.append(dist.isend(tensor, message.dst) if way == "send" else dist.irecv(tensor, message.src))
        for work in works:
            work.wait()

    run_ranks(torch, program)
    launches = [record for record in torch.traces if record.name == "send_recv"]
    return max(record.t_end_ns for record in launches) - min(record.t_start_ns for record in launches)


def test_both_directions_of_a_pair_take_the_time_of_one(tmp_path):
    pair = [Message(0, 1, FULL_QUEUE), Message(1, 0, FULL_QUEUE)]
    with context_on(working_machine(), tmp_path, RING) as torch:
        alone = span_of_messages(torch, pair[:1])
    with context_on(working_machine(), tmp_path, RING) as torch:
        both = span_of_messages(torch, pair)
    assert alone <= both < 1.2 * alone


MIB = 1 << 18
"""Elements of f32 in 1 MiB."""


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(MIB, MIB), (4 * MIB, 1), (1, 4 * MIB)])
@pytest.mark.parametrize("orders", [("send", "send"), ("receive", "receive"), ("send", "receive")])
def test_large_pairs_end(tmp_path, orders, sizes):
    pair = [Message(0, 1, sizes[0]), Message(1, 0, sizes[1])]
    with context_on(working_machine(), tmp_path, RING) as torch:
        run_exchange(torch, lambda rank: posts_of(rank, pair, first=orders[rank]))


def run_random(folder: Path, seed: int, defaults: str = "") -> None:
    """Run a random exchange of two to five ranks, by queues of these ``defaults`` of ccl.yaml."""
    ranks, draw = 2 + seed % 4, random.Random(seed)
    posts = random_posts(ranks, seed, (1, 1000, 5000, FULL_QUEUE))
    file = folder / "ccl.yaml"
    file.write_text(f"defaults: {{{defaults}}}\nalgorithms:\n  chosen: {RING}\n")
    with RuntimeContext(GraphEngine(working_machine(ranks)), ccl=file) as torch:
        run_exchange(torch, lambda rank: posts[rank], wait_order=draw.shuffle)


@pytest.mark.parametrize("seed", [4, 16])
def test_random_exchanges_end(tmp_path, seed):
    run_random(tmp_path, seed)


QUEUES = ("", "n_slots: 1", "n_slots: 2", "buffer_kind: hbm", "buffer_kind: sram", "backpressure: poll")


@pytest.mark.slow
@pytest.mark.parametrize("defaults", QUEUES)
@pytest.mark.parametrize("seed", range(8))
def test_random_exchanges_end_by_any_queues(tmp_path, seed, defaults):
    run_random(tmp_path, seed + 8 * QUEUES.index(defaults), defaults)
