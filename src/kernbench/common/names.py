"""Names that a user may have meant by one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

SHORTEST = 3
"""Letters of a name that is compared: shorter ones are all close to each other."""


def close_to(name: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'? `` for the known name that is nearest; nothing when none is close.

    Capitals and ``_`` for ``-`` are no difference.
    """
    wanted, alike = _folded(str(name)), {_folded(each): each for each in known}
    close = difflib.get_close_matches(wanted, alike, n=1) if len(wanted) >= SHORTEST else []
    return f"did you mean {alike[close[0]]!r}? " if close else ""


def there_are(name: object, known: Sequence[str], hint: str = "") -> str:
    """Return ``there are: a, b; did you mean 'a'? hint``: what is said where ``name`` is none of ``known``."""
    listed = f"there are: {', '.join(known)}"
    more = f"{close_to(name, known)}{hint}".rstrip()
    return f"{listed}; {more}" if more else listed


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")
