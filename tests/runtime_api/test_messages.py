"""Messages between ranks: whatever is posted before a wait ends, in any order and size, with the right numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from machines import RING, context_on, run_ranks, working_machine

from kernbench.common.errors import IpcqDeadlock
from kernbench.policy.placement.dp import DPPolicy

ROWS = DPPolicy(pe="row_wise", num_cubes=1)
FULL_QUEUE = 8 * 4 * 1024
"""Elements of f32 of which each of the four PEs of a cube has twice what the four slots of its queue take."""


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
