"""Trees: reduce towards the root, broadcast away from it, piece by piece.

Receives are posted and not waited for, so that pieces follow each other through all levels; a piece goes on from the
slot it came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kernbench.ccl.steps.chunks import loaded, places
from kernbench.ccl.steps.messages import Messages

Keep = Callable[[int, Any], None]
"""Told the number and the handle of a piece of the result; the handle is a slot, so it must not be held."""


class Branch(NamedTuple):
    """The queues of a node: to its parent (None: it is the root), and to its children in the order they are added."""

    parent: str | None
    children: tuple[str, ...]


def in_binary_tree(at: int, n: int) -> Branch:
    """Place ``at`` in a binary tree of ``n`` whose root is place 0."""
    children = (("child_left", 2 * at + 1), ("child_right", 2 * at + 2))
    return Branch("parent" if at else None, tuple([name for name, child in children if child < n]))


def reduced(branch: Branch, mine: Iterable[Any], messages: Messages, tl: Any) -> list[Any]:
    """Reduce ``mine``, piece by piece, towards the root, which gets the result; all others get nothing."""
    result: list[Any] = []
    for x in mine:
        whole = _with_children(branch, x, messages, tl)
        if branch.parent is None:
            result.append(whole)
        else:
            tl.send(branch.parent, whole)
    return result


def spread(branch: Branch, result: Sequence[Any], counts: Sequence[int], dtype: str, keep: Keep, tl: Any) -> None:
    """Broadcast the root's ``result``, pieces of ``counts`` elements; each node is told of each piece."""
    for i, count in enumerate(counts):
        _pass_down(
            branch, i, result[i] if branch.parent is None else tl.recv_async(branch.parent, count, dtype), keep, tl
        )


def all_reduce(
    branch: Branch, mine: Iterable[Any], messages: Messages, contributions: int, keep: Keep, tl: Any
) -> None:
    """Reduce ``mine`` over the tree; each node is told of each piece of the result, while later ones are on their way.

    The same bits everywhere: sums are made once, on the way up.
    """
    for i, x in enumerate(mine):
        whole = _with_children(branch, x, messages, tl)
        if branch.parent is None:
            whole = messages.finish(whole, contributions, tl)
        else:
            tl.send(branch.parent, whole)
            whole = tl.recv_async(branch.parent, x.shape[0], x.dtype)
        _pass_down(branch, i, whole, keep, tl)
        del whole  # it may be a slot, which the next piece may need


def all_reduce_in_place(ptr: int, n: int, branch: Branch, messages: Messages, contributions: int, tl: Any) -> None:
    """Reduce ``n`` elements at ``ptr`` over the tree; nothing is held but what is on its way."""
    if branch == Branch(None, ()):
        return
    where = places(ptr, n, messages, tl)
    mine = loaded(where, messages, tl)
    all_reduce(branch, mine, messages, contributions, lambda i, x: tl.store(where[i][0], x), tl)


def _with_children(branch: Branch, x: Any, messages: Messages, tl: Any) -> Any:
    for child in branch.children:
        x = messages.combine(x, tl.recv_async(child, x.shape[0], x.dtype), tl)
    return x


def _pass_down(branch: Branch, i: int, piece: Any, keep: Keep, tl: Any) -> None:
    for child in branch.children:
        tl.send(child, piece)
    keep(i, piece)
