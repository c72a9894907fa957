"""What holds for the whole suite."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is slow, not wrong.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
