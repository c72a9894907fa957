"""Trees: reduce towards the root, broadcast away from it, piece by piece; a piece goes on from the slot it came in.

One way only, receives are not waited for, so that pieces follow each other through all levels. Where results come down
while contributions go up, both share the links of every node, and are to share them evenly: a node that sends
everything up first keeps what it waits for from coming. So it takes one result from above for each piece that it sends,
once it is a few pieces ahead, its *lead*, which covers the way to the root and back: bandwidth times delay of each hop.

No deadlock: a parent with a lead of L and s slots has received piece L + s before it has to wait for its child to take
the first result, so the child can send the piece L + 2 s; its lead is at most 2 s more than the parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.ccl.pieces import Messages
from kernbench.messages.steps import Chunk, ChunkSource, Step, await_message, receive, send, store


class Branch(NamedTuple):
    """The queues of a node: to its parent (None: it is the root), and to its children in the order they are added."""

    parent: str | None
    children: tuple[str, ...]


def in_binary_tree(at: int, n: int) -> Branch:
    """Place ``at`` in a binary tree of ``n`` whose root is place 0."""
    children = (("child_left", 2 * at + 1), ("child_right", 2 * at + 2))
    return Branch("parent" if at else None, tuple([name for name, child in children if child < n]))


class Hops(NamedTuple):
    """The way from a node to the root: hops within a cube, between cubes of a SIP, and between SIPs."""

    pes: int
    cubes: int
    sips: int

    def lead(self, messages: Messages) -> int:
        """Return how many pieces the node sends up before it takes the first result: those on their way, whole ones.

        No more than the slots of a queue can be on a hop.
        """
        each = (min(messages.n_slots, messages.under_way(nbytes)) for nbytes in messages.hop_bytes)
        return sum(hops * pieces for hops, pieces in zip(self, each, strict=True))


def hops_to_root(rank: int, pes_per_cube: int = 1, cubes_per_sip: int = 1) -> Hops:
    """Count the hops from ``rank`` to the root of a binary tree over the PEs of a machine, in their order."""
    pes = cubes = sips = 0
    at = rank
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


def reduce_pieces(branch: Branch, order: Sequence[int], pieces: Sequence[Chunk], messages: Messages) -> list[Step]:
    """Reduce ``pieces`` in this order towards the root, which has the result in their buffers; all others nothing."""
    steps: list[Step] = []
    for i, added in _add_children(branch, pieces, messages, receive, order):
        steps += added if branch.parent is None else [*added, send(branch.parent, i)]
    return steps


def spread(branch: Branch, order: Iterable[int], pieces: Sequence[Chunk]) -> list[Step]:
    """Broadcast what is in the root's buffers, in this order; each node stores each piece."""
    steps: list[Step] = []
    for i in order:
        if branch.parent is None:
            steps += _pass_down(branch, i, pieces[i])
        else:
            steps += [receive(branch.parent, pieces[i].size), *_pass_down(branch, branch.parent, pieces[i])]
    return steps


def all_reduce(
    branch: Branch, lead: int, pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> list[Step]:
    """Reduce ``pieces`` over the tree, in place; nothing is held but what is on its way.

    The same bits everywhere: sums are made once, on the way up.
    """
    if branch.parent is None:
        return _from_root(branch, pieces, messages, contributions) if branch.children else []
    steps: list[Step] = []
    for i, added in _add_children(branch, pieces, messages, receive):
        steps += [*added, send(branch.parent, i)]
        if i >= lead:
            steps += _result(branch, branch.parent, pieces[i - lead])
    for piece in pieces[max(0, len(pieces) - lead) :]:
        steps += _result(branch, branch.parent, piece)
    return steps


def _from_root(branch: Branch, pieces: Sequence[Chunk], messages: Messages, contributions: int) -> list[Step]:
    """At the pace of what comes in."""
    steps: list[Step] = []
    for i, added in _add_children(branch, pieces, messages, await_message):
        steps += [*added, *messages.finish(i, contributions), *_pass_down(branch, i, pieces[i])]
    return steps


def _add_children(
    branch: Branch,
    pieces: Sequence[Chunk],
    messages: Messages,
    take: Callable[[str, int], Step],
    order: Iterable[int] | None = None,
) -> Iterator[tuple[int, list[Step]]]:
    """Yield, for each of ``pieces``, the steps that load it and add what the children send."""
    for i, steps in messages.load_ahead(pieces, order):
        for child in branch.children:
            steps += [take(child, pieces[i].size), messages.add(i, child)]
        yield i, steps


def _result(branch: Branch, parent: str, piece: Chunk) -> list[Step]:
    return [await_message(parent, piece.size), *_pass_down(branch, parent, piece)]


def _pass_down(branch: Branch, what: ChunkSource, piece: Chunk) -> list[Step]:
    return [*(send(child, what) for child in branch.children), store(what, piece)]
