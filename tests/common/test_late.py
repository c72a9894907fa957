"""Tests of imports that are put off."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernbench.common.late import late

INTERRUPTED = """\
import signal
try:
    signal.raise_signal(signal.{number})
except BaseException:
    raise ImportError("as NumPy does") from None
made = True
"""


class Stopped(BaseException):
    """What the handler of a signal raises."""


def stop(*_: object) -> None:
    raise Stopped


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGINT, stop, Stopped),
        (signal.SIGALRM, stop, Stopped),
    ],
)
def test_a_stop_waits_for_an_import(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    handler: Callable[..., None],
    raised: type[BaseException],
) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED.format(number=number.name))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "interrupted", raising=False)
    before = signal.signal(number, handler)
    try:
        with pytest.raises(raised):
            late("interrupted", "made")
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert late("interrupted", "made") is True
