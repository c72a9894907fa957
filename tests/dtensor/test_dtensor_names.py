"""Programs for the original system import these modules by name."""

from __future__ import annotations

import kernbench.dtensor as package
from kernbench.dtensor import api, device_mesh


def test_the_modules_have_what_their_names_suggest():
    for name in ("DeviceMesh", "init_device_mesh"):
        assert getattr(device_mesh, name) is getattr(package, name)
    for name in package.__all__:
        assert getattr(api, name) is getattr(package, name)
