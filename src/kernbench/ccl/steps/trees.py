"""Trees: reduce towards the root, broadcast away from it, piece by piece; a piece goes on from the slot it came in.

One way only, receives are posted and not waited for, so that pieces follow each other through all levels. Where results
come down while contributions go up, both share the links of every node, and are to share them evenly: a node that sends
everything up first keeps what it waits for from coming. So it takes one result from above for each piece that it sends,
once it is a few pieces ahead, its *lead*, which covers the way to the root and back, and uses no more slots of a queue
than its *window*. How many slots there are beyond that changes nothing.

No deadlock: with w slots, or as many as the window if that is less, a parent with a lead of L has received piece L + w
before it has to wait for its child to take the first result, so the child can send the piece L + 2 w; its lead is at
most 2 w more than the parent's. So kernels must not be told of more than twice the slots that there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kernbench.ccl.steps.messages import Messages, loaded, message_args, on_the_way, places
from kernbench.messages.commands import NO_WINDOW

HOP_BYTES = (4 << 10, 12 << 10, 20 << 10)
"""What passes a link of a node in the time of a hop there and back, by the levels of ``Hops``: measured."""
HOP_BYTES_BY_MEMORY = (12 << 10, 12 << 10, 12 << 10)
"""The same where rings lie in HBM or SRAM: a message is announced there, and read."""
WINDOW_BYTES = (8 << 10, 12 << 10, 20 << 10)
"""What a queue of a tree is to hold, by the level of the tree's longest hop: measured."""

Keep = Callable[[int, Any], None]
"""Told the number and the handle of a piece of the result; the handle is a slot, so it must not be held."""


class Branch(NamedTuple):
    """The queues of a node: to its parent (None: it is the root), and to its children in the order they are added.

    ``window``: how many slots of a queue are used at most.
    """

    parent: str | None
    children: tuple[str, ...]
    window: int = NO_WINDOW


def in_binary_tree(at: int, n: int, window: int = NO_WINDOW) -> Branch:
    """Place ``at`` in a binary tree of ``n`` whose root is place 0."""
    children = (("child_left", 2 * at + 1), ("child_right", 2 * at + 2))
    return Branch("parent" if at else None, tuple([name for name, child in children if child < n]), window)


def tree_args(*, n_slots: int = 2, buffer_kind: str = "tcm", **config: Any) -> tuple[int | str, ...]:
    """What ``Hops.lead`` takes, and what messages take.

    ``n_slots`` of a queue: with less than half as many the kernels would wait for each other.
    """
    return n_slots, buffer_kind, *message_args(**config)


class Hops(NamedTuple):
    """How far it is from a node to the root: hops within a cube, between cubes of a SIP, and between SIPs."""

    pes: int
    cubes: int
    sips: int

    def lead(self, messages: Messages, n_slots: int, buffer_kind: str) -> int:
        """How many pieces the node sends up before it takes the first result: what is on its way, of whole pieces.

        A hop adds no more than ``n_slots``, those that are used: so many can be under way.
        """
        under_way = HOP_BYTES if buffer_kind == "tcm" else HOP_BYTES_BY_MEMORY
        each = (min(n_slots, on_the_way(nbytes, messages.nbytes)) for nbytes in under_way)
        return sum(hops * pieces for hops, pieces in zip(self, each, strict=True))


def widest_window(messages: Messages, top: int, sharers: int = 1) -> int:
    """How many slots a tree uses of its queues; its longest hops are of level ``top``, ``sharers`` over the same links.

    With a lead at every node, more would let those far from the root fill the links of others.
    """
    return on_the_way(WINDOW_BYTES[top], messages.nbytes * sharers)


def hops_to_root(at: int, pes_per_cube: int = 1, cubes_per_sip: int = 1) -> Hops:
    """From place ``at`` of a binary tree over the PEs of a machine; over its SIPs when they have but one."""
    pes = cubes = sips = 0
    while at:
        parent = (at - 1) // 2
        cube, parents = at // pes_per_cube, parent // pes_per_cube
        if cube == parents:
            pes += 1
        elif cube // cubes_per_sip == parents // cubes_per_sip:
            cubes += 1
        else:
            sips += 1
        at = parent
    return Hops(pes, cubes, sips)


def reduced(branch: Branch, mine: Iterable[Any], messages: Messages, tl: Any) -> list[Any]:
    """Reduce ``mine``, piece by piece, towards the root, which gets the result; all others get nothing."""
    result: list[Any] = []
    for x in mine:
        whole = _with_children(branch, x, tl.recv_async, messages, tl)
        if branch.parent is None:
            result.append(whole)
        else:
            tl.send(branch.parent, whole, window=branch.window)
    return result


def spread(branch: Branch, result: Sequence[Any], counts: Sequence[int], dtype: str, keep: Keep, tl: Any) -> None:
    """Broadcast the root's ``result``, pieces of ``counts`` elements; each node is told of each piece."""
    for i, count in enumerate(counts):
        _pass_down(
            branch, i, result[i] if branch.parent is None else tl.recv_async(branch.parent, count, dtype), keep, tl
        )


def all_reduce(
    branch: Branch, lead: int, mine: Iterable[Any], messages: Messages, contributions: int, keep: Keep, tl: Any
) -> None:
    """Reduce ``mine`` over the tree; each node is told of each piece of the result, while later ones are on their way.

    The same bits everywhere: sums are made once, on the way up.
    """
    if branch.parent is None:
        for i, x in enumerate(mine):  # at the pace of what comes in
            whole = messages.finish(_with_children(branch, x, tl.recv, messages, tl), contributions, tl)
            _pass_down(branch, i, whole, keep, tl)
        return
    ahead: deque[tuple[int, int]] = deque()  # numbers and elements of pieces whose results are to come
    for i, x in enumerate(mine):
        tl.send(branch.parent, _with_children(branch, x, tl.recv_async, messages, tl), window=branch.window)
        ahead.append((i, x.shape[0]))
        if len(ahead) > lead:
            _take_result(branch, *ahead.popleft(), messages, keep, tl)
    while ahead:
        _take_result(branch, *ahead.popleft(), messages, keep, tl)


def all_reduce_in_place(
    ptr: int, n: int, branch: Branch, lead: int, messages: Messages, contributions: int, tl: Any
) -> None:
    """Reduce ``n`` elements at ``ptr`` over the tree; nothing is held but what is on its way."""
    if branch.parent is None and not branch.children:
        return
    where = places(ptr, n, messages, tl)
    mine = loaded(where, messages, tl)
    all_reduce(branch, lead, mine, messages, contributions, lambda i, x: tl.store(where[i][0], x), tl)


def _with_children(branch: Branch, x: Any, receive: Callable[..., Any], messages: Messages, tl: Any) -> Any:
    for child in branch.children:
        x = messages.combine(x, receive(child, x.shape[0], x.dtype), tl)
    return x


def _take_result(branch: Branch, i: int, count: int, messages: Messages, keep: Keep, tl: Any) -> None:
    _pass_down(branch, i, tl.recv(branch.parent, count, messages.dtype), keep, tl)


def _pass_down(branch: Branch, i: int, piece: Any, keep: Keep, tl: Any) -> None:
    for child in branch.children:
        tl.send(child, piece, window=branch.window)
    keep(i, piece)
