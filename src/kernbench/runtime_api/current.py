"""Which context code runs in, for libraries whose functions need not be given one: as code in a process has its torch.

It is the innermost ``with RuntimeContext(...)`` around the code, and for a rank around whoever spawned it. The variable
belongs to the flow of execution (``contextvars``), so contexts side by side do not see each other.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

Entered: TypeAlias = "Token[RuntimeContext[Any] | None]"

_CURRENT: ContextVar[RuntimeContext[Any] | None] = ContextVar("kernbench_context", default=None)


def current_context() -> RuntimeContext[Any] | None:
    """The context that was entered around this code, if one was."""
    return _CURRENT.get()


def enter(context: RuntimeContext[Any]) -> Entered:
    """From here on ``context`` is the current one."""
    return _CURRENT.set(context)


def leave(entered: Entered) -> None:
    """What was current before is so again."""
    _CURRENT.reset(entered)
