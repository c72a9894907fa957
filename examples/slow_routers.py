"""An architect's own part: a router that takes several times as long as the builtin one.

kernbench probe --case pe-far-cube-hbm --set cube.components.noc_router.impl=examples.slow_routers.SlowRouter
"""

from kernbench.components.passive import NocRouter


class SlowRouterAttrs(NocRouter.Attrs):
    """``attrs`` in YAML: those of a router, and one more."""

    factor: float = 3.0


class SlowRouter(NocRouter):
    """Takes ``factor`` times as long as the builtin one."""

    Attrs = SlowRouterAttrs

    @property
    def overhead_ns(self) -> float:
        """What a packet pays to pass."""
        return self.attrs_as(SlowRouterAttrs).factor * super().overhead_ns
