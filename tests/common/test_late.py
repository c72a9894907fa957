"""Tests of imports that are put off."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kernbench.common.late import late

INTERRUPTED = """\
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("as NumPy does") from None
made = True
"""


def test_ctrl_c_waits_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "interrupted", raising=False)
    with pytest.raises(KeyboardInterrupt):
        late("interrupted", "made")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert late("interrupted", "made") is True
