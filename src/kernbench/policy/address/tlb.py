"""The translations that an MMU keeps: the pages used last."""

from __future__ import annotations


class Tlb:
    """``entries`` pages at most, by number; when another comes, the one that was used longest ago goes.

    ``hits`` and ``misses`` count look-ups.
    """

    __slots__ = ("_entries", "_pages", "hits", "misses")

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._pages: dict[int, None] = {}  # the one that was used longest ago first
        self.hits = self.misses = 0

    def look_up(self, page: int) -> bool:
        """Whether ``page`` is there; it is afterwards."""
        pages = self._pages
        found = page in pages
        if found:
            self.hits += 1
            del pages[page]
        else:
            self.misses += 1
            if len(pages) == self._entries:
                del pages[next(iter(pages))]
        pages[page] = None
        return found

    def clear(self) -> None:
        """Forget all pages."""
        self._pages.clear()
