"""Trees: reduce towards the root and broadcast away from it, piece by piece, each piece sent on from its slot.

In a one-way tree, receives do not block, so pieces follow each other through all levels. An all-reduce sends results
down while contributions go up, and both share the links of every node. A node that first sent all its pieces up would
delay the results that it waits for. Therefore each node sends a few pieces ahead, and then receives one result from its
parent for each piece that it sends. This *lead* covers the path to the root and back: the bandwidth-delay product of
each hop.

The tree cannot deadlock. A parent with a lead of L and s slots waits for its child to receive the first result. By then
the parent has received piece L + s. The child can therefore send piece L + 2 s, and its lead exceeds the lead of the
parent by at most 2 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.ccl.pieces import Messages
from kernbench.messages.steps import Chunk, ChunkSource, Step, await_message, receive, send, store


class Branch(NamedTuple):
    """The queues of a node: to its parent (None for the root) and to its children, whose data it adds in this order."""

    parent: str | None
    children: tuple[str, ...]


def in_binary_tree(place: int, n: int) -> Branch:
    """Return the queues of place ``place`` in a binary tree of ``n`` places with place 0 as root."""
    children = (("child_left", 2 * place + 1), ("child_right", 2 * place + 2))
    return Branch("parent" if place else None, tuple([name for name, child in children if child < n]))


class Hops(NamedTuple):
    """The path from a node to the root: hops within a cube, between cubes of a SIP, and between SIPs."""

    pes: int
    cubes: int
    sips: int

    def lead(self, messages: Messages) -> int:
        """Return the number of pieces that the node sends up before it receives the first result.

        A hop holds at most as many pieces as a queue has slots.
        """
        pieces_per_hop = (min(messages.n_slots, messages.in_flight(nbytes)) for nbytes in messages.hop_bytes)
        return sum(hops * pieces for hops, pieces in zip(self, pieces_per_hop, strict=True))


def hops_to_root(rank: int, pes_per_cube: int = 1, cubes_per_sip: int = 1) -> Hops:
    """Count the hops from PE ``rank`` to the root of a binary tree over the PEs of a machine in rank order."""
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
    """Return the steps that reduce ``pieces`` in ``order`` towards the root, whose buffers then have the result."""
    steps: list[Step] = []
    for i, added in _add_children(branch, pieces, messages, receive, order):
        steps += added if branch.parent is None else [*added, send(branch.parent, i)]
    return steps


def spread(branch: Branch, order: Iterable[int], pieces: Sequence[Chunk]) -> list[Step]:
    """Return the steps that broadcast the root's buffers in ``order``; each node stores each piece."""
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
    """Return the steps that reduce ``pieces`` over the tree in place; only the pieces in flight need buffers.

    All nodes end with the same bits: each sum is computed once, on the way up.
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
    """Return the root's steps: each piece goes down as soon as it is complete."""
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
    """Yield (index, steps) for each piece; the steps load it and add the messages of the children."""
    for i, steps in messages.load_ahead(pieces, order):
        for child in branch.children:
            steps += [take(child, pieces[i].size), messages.add(i, child)]
        yield i, steps


def _result(branch: Branch, parent: str, piece: Chunk) -> list[Step]:
    return [await_message(parent, piece.size), *_pass_down(branch, parent, piece)]


def _pass_down(branch: Branch, source: ChunkSource, piece: Chunk) -> list[Step]:
    return [*(send(child, source) for child in branch.children), store(source, piece)]
