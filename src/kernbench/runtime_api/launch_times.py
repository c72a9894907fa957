"""Durations of launches of one kind, foreseen from samples, and their errors.

Launches of a kind differ most by the refresh of the memory that they meet. A refresh stops all banks at once, and so
stretches a launch that waits for them. A sample therefore consists of its duration, and of the time of the refreshes
during it. The foreseen duration is the mean of the samples, corrected for the refreshes that the launch will meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from kernbench.common.values import state, value
from kernbench.topology.hbm_refresh import RefreshClock

PRIOR_SAMPLES = 2
"""Samples of other kinds that count as much as those of a kind for its standard deviation"""
DEVIATIONS = 2
"""Standard deviations that a stated error covers"""


def met_ps(clock: RefreshClock, begin_ps: int, end_ps: int) -> int:
    """Return the time of refreshes between two times, in ps."""
    return end_ps - begin_ps - (clock.into(end_ps) - clock.into(begin_ps))


@value
class ForeseenTime:
    """The duration of a launch as a function of its begin, in ps.

    ``mean_ps``, ``mean_met_ps``: the means of the samples' durations and of the refreshes during them. ``share``: the
    share of a refresh by which it stretches the launch.
    """

    mean_ps: float
    mean_met_ps: float
    share: float
    clock: RefreshClock

    def __call__(self, begin_ps: int) -> int:
        """Return the duration of a launch that begins at ``begin_ps``."""
        duration_ps = round(self.mean_ps)
        for _ in range(3):  # a longer launch may meet more of a refresh
            met = met_ps(self.clock, begin_ps, begin_ps + duration_ps)
            duration_ps = max(0, round(self.mean_ps + self.share * (met - self.mean_met_ps)))
        return duration_ps


@state
class SampledTimes:
    """The samples of a kind: durations, and refreshes during them, in ps.

    ``error_weight``: the sum over passed launches of the standard error of their mean, in standard deviations.
    ``n_passed``: their number.
    """

    durations: list[int] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    error_weight: float = 0.0
    n_passed: int = 0

    @property
    def mean_ps(self) -> float:
        """The mean duration in ps."""
        return sum(self.durations) / len(self.durations)

    @property
    def mean_met_ps(self) -> float:
        """The mean time of refreshes in ps."""
        return sum(self.met) / len(self.met)

    @property
    def products(self) -> tuple[float, float]:
        """The sums over samples of met × duration and of met × met, each as a difference from its mean, in ps²."""
        mean_ps, mean_met = self.mean_ps, self.mean_met_ps
        pairs = list(zip(self.met, self.durations, strict=True))
        return sum((met - mean_met) * (ps - mean_ps) for met, ps in pairs), sum(
            (met - mean_met) ** 2 for met in self.met
        )


@state
class LaunchTimes:
    """The samples of all kinds of a run. Kinds with few samples use what all kinds have in common."""

    clock: RefreshClock
    kinds: list[SampledTimes] = field(default_factory=list)
    _common_share: float = 1.0

    def add_kind(self) -> SampledTimes:
        """Return the empty samples of a new kind."""
        self.kinds.append(SampledTimes())
        return self.kinds[-1]

    def add(self, kind: SampledTimes, begin_ps: int, end_ps: int) -> None:
        """Add a sample of a kind."""
        kind.durations.append(end_ps - begin_ps)
        kind.met.append(met_ps(self.clock, begin_ps, end_ps))
        products = [kind.products for kind in self.kinds if kind.durations]
        self._common_share = self._fit((sum(sums) for sums in zip(*products, strict=True)), 1.0)

    def foresee(self, kind: SampledTimes) -> ForeseenTime:
        """Return the duration of the next launch of a kind."""
        return ForeseenTime(kind.mean_ps, kind.mean_met_ps, self._share(kind), self.clock)

    def pass_launch(self, kind: SampledTimes) -> ForeseenTime:
        """Return the duration of a launch that passes, and count it for the error."""
        kind.n_passed += 1
        kind.error_weight += len(kind.durations) ** -0.5
        return self.foresee(kind)

    def spread(self, kind: SampledTimes) -> float:
        """Return the largest difference between samples beyond that of refreshes, as a share of the mean."""
        rests = self._rests(kind)
        return (max(rests) - min(rests)) / max(1.0, kind.mean_ps)

    def error_ps(self) -> float:
        """Return the error of the time that passed, ``DEVIATIONS`` standard deviations, in ps.

        The variance of a kind is that of its samples, and of ``PRIOR_SAMPLES`` with the common variance. The errors of
        kinds are independent. Those of the launches of a kind are not: they recur with the phase of the refresh.
        """
        kinds = [kind for kind in self.kinds if kind.durations]
        squares = {id(kind): sum(rest**2 for rest in self._rests(kind)) for kind in kinds}
        degrees = sum(len(kind.durations) - 1 for kind in kinds)
        common = sum(squares.values()) / degrees if degrees else 0.0
        variance = 0.0
        for kind in kinds:
            of_kind = (squares[id(kind)] + PRIOR_SAMPLES * common) / (len(kind.durations) - 1 + PRIOR_SAMPLES)
            variance += of_kind * (kind.error_weight**2 + kind.n_passed)
        return float(DEVIATIONS * variance**0.5)

    def _rests(self, kind: SampledTimes) -> list[float]:
        """Return the differences of samples from their mean that refreshes do not explain."""
        share, mean_ps, mean_met = self._share(kind), kind.mean_ps, kind.mean_met_ps
        return [ps - mean_ps - share * (met - mean_met) for met, ps in zip(kind.met, kind.durations, strict=True)]

    def _share(self, kind: SampledTimes) -> float:
        return self._fit(kind.products, self._common_share)

    def _fit(self, products: Iterable[float], prior: float) -> float:
        """Return the share of a refresh that stretches a launch, from 0 to 1.

        The fit is one by least squares, with a further pair of samples: one that met no refresh, and one that met a
        complete refresh and was longer by the share ``prior`` of it.
        """
        by_duration, by_met = products
        weight = self.clock.outage_ps**2 / 2
        if not by_met + weight:
            return 0.0
        return min(1.0, max(0.0, (by_duration + weight * prior) / (by_met + weight)))
