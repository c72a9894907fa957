"""A fixture: pictures of few pixels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernbench.result import figure_style


@pytest.fixture(scope="package", autouse=True)
def coarse_pictures() -> Iterator[None]:
    """To write pictures as users have them takes as long as to draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_style, "DPI", 50)
        yield
