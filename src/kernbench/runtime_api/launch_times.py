"""Durations of launches of one kind, foreseen from samples, and their errors.

Launches of a kind differ most by the refresh of the memory that they meet. A refresh stops all banks at once, and so
stretches a launch that waits for them. A sample therefore consists of its duration, and of the time of the refreshes
during it. The foreseen duration is the mean of the samples, corrected for the refreshes that the launch will meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple

from kernbench.common.values import state, value
from kernbench.topology.hbm_refresh import RefreshClock

PRIOR_SAMPLES = 2
"""Samples of other kinds that count as much as those of a kind for its standard deviation"""
COMMON_SHARE, SHARE_DEVIATION = 0.75, 0.3
"""Share of a refresh that stretches a launch, before any sample, and its standard deviation among kinds"""
LEAST_VARIANCE = 0.05
"""Least variance of the share by which one refresh stretches a launch"""
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
        return sum(self.durations) / max(1, len(self.durations))

    @property
    def mean_met_ps(self) -> float:
        """The mean time of refreshes in ps."""
        return sum(self.met) / max(1, len(self.met))

    @property
    def products(self) -> tuple[float, float]:
        """The sums over samples of met × duration and of met × met, each as a difference from its mean, in ps²."""
        mean_ps, mean_met = self.mean_ps, self.mean_met_ps
        pairs = list(zip(self.met, self.durations, strict=True))
        return sum((met - mean_met) * (ps - mean_ps) for met, ps in pairs), sum(
            (met - mean_met) ** 2 for met in self.met
        )


class Deviations(NamedTuple):
    """Variances of a launch of a kind, in ps².

    ``of_kind``: by the variance of the kind's samples, and of ``PRIOR_SAMPLES`` with the common variance. ``of_mean``:
    of the mean of all launches, by the share of the refreshes that the samples met. ``of_share``: of each launch, by
    the share of the refreshes that it meets.
    """

    of_kind: float
    of_mean: float
    of_share: float


@state
class LaunchTimes:
    """The samples of all kinds of a run. Kinds with few samples use what all kinds have in common.

    ``in_part_ps2``: the variance of the launches of which a part was simulated, in ps².
    """

    clock: RefreshClock
    kinds: list[SampledTimes] = field(default_factory=list)
    in_part_ps2: float = 0.0
    _common_share: float = COMMON_SHARE
    _deviations: list[Deviations] | None = None

    def add_kind(self) -> SampledTimes:
        """Return the empty samples of a new kind."""
        self.kinds.append(SampledTimes())
        self._deviations = None
        return self.kinds[-1]

    def add(self, kind: SampledTimes, begin_ps: int, end_ps: int) -> None:
        """Add a sample of a kind."""
        kind.durations.append(end_ps - begin_ps)
        kind.met.append(met_ps(self.clock, begin_ps, end_ps))
        self._deviations = None
        products = [kind.products for kind in self.kinds if kind.durations]
        self._common_share = self._fit((sum(sums) for sums in zip(*products, strict=True)), COMMON_SHARE)

    def foresee(self, kind: SampledTimes) -> ForeseenTime:
        """Return the duration of the next launch of a kind."""
        return ForeseenTime(kind.mean_ps, kind.mean_met_ps, self._share(kind), self.clock)

    def count_passed(self, kind: SampledTimes) -> None:
        """Count a launch that passes for the error."""
        kind.n_passed += 1
        kind.error_weight += len(kind.durations) ** -0.5

    def count_part(self, more: float, start_ps: int) -> None:
        """Count a launch that takes ``more`` times the time of its simulated part longer than that part.

        The number of refreshes in the time of the part has a variance of at most 1/4. Its start of ``start_ps`` may
        have done work, or its end less than the average.
        """
        self.in_part_ps2 += more**2 * (self.clock.outage_ps**2 / 4 + start_ps**2)

    def spread(self, kind: SampledTimes) -> float:
        """Return the largest difference between samples beyond that of refreshes, as a share of the mean."""
        rests = self._rests(kind)
        return (max(rests) - min(rests)) / max(1.0, kind.mean_ps)

    def error_ps(self) -> float:
        """Return the error of the time that passed, ``DEVIATIONS`` standard deviations, in ps.

        The errors of kinds are independent.
        """
        variances = map(_variance, self.kinds, self._list_deviations())
        return float(DEVIATIONS * (sum(variances) + self.in_part_ps2) ** 0.5)

    def error_share(self, kind: SampledTimes) -> float:
        """Return the part of the variance of the time that is due to a kind."""
        variances = list(map(_variance, self.kinds, self._list_deviations()))
        at = next(at for at, sampled in enumerate(self.kinds) if sampled is kind)
        return variances[at] / (sum(variances) or 1.0)

    def _list_deviations(self) -> list[Deviations]:
        """Return the deviations of launches of each kind. They change with samples only."""
        if self._deviations is None:
            squares = [sum(rest**2 for rest in self._rests(kind)) for kind in self.kinds]
            degrees = [max(0.0, len(kind.durations) - 1 - self._fitted(kind)) for kind in self.kinds]
            common = sum(squares) / sum(degrees) if sum(degrees) else 0.0
            outage_ps = self.clock.outage_ps
            average_met = outage_ps / self.clock.period_ps
            self._deviations = []
            for kind, of_samples, free in zip(self.kinds, squares, degrees, strict=True):
                of_kind = (of_samples + PRIOR_SAMPLES * common) / (free + PRIOR_SAMPLES)
                unusual_ps = kind.mean_ps * average_met - kind.mean_met_ps
                # Most refreshes stretch a launch completely, or not at all while the launch does not wait for memory.
                share = self._share(kind)
                of_one = max(LEAST_VARIANCE, share * (1 - share))
                samples_ps2 = sum(met * min(met, outage_ps) for met in kind.met) / max(1, len(kind.met)) ** 2
                unknown = 1 - self._fitted(kind)  # samples that met refreshes differ by these shares, too
                of_kinds = unknown * (SHARE_DEVIATION * unusual_ps) ** 2
                of_launches = unknown * of_one * kind.mean_ps * average_met * outage_ps
                self._deviations.append(Deviations(of_kind, of_kinds + of_one * samples_ps2, of_launches))
        return self._deviations

    def _fitted(self, kind: SampledTimes) -> float:
        """Return the part, from 0 to 1, by which the samples of a kind decide its share of a refresh."""
        _, by_met = kind.products
        weight = self._prior_weight
        return by_met / (by_met + weight) if by_met else 0.0

    @property
    def _prior_weight(self) -> float:
        return float(self.clock.outage_ps**2 / 2)

    def _rests(self, kind: SampledTimes) -> list[float]:
        """Return the differences of samples from their mean that refreshes do not explain."""
        share, mean_ps, mean_met = self._share(kind), kind.mean_ps, kind.mean_met_ps
        return [ps - mean_ps - share * (met - mean_met) for met, ps in zip(kind.met, kind.durations, strict=True)]

    def _share(self, kind: SampledTimes) -> float:
        return self._fit(kind.products, self._common_share)

    def _fit(self, products: Iterable[float], prior: float) -> float:
        """Return the share of a refresh that stretches a launch, from 0 to 1.

        The fit is one by least squares, with two further samples. The first met no refresh. The second met a complete
        refresh, and was longer by the share ``prior`` of it.
        """
        by_duration, by_met = products
        weight = self._prior_weight
        if not by_met + weight:
            return 0.0
        return min(1.0, max(0.0, (by_duration + weight * prior) / (by_met + weight)))


def _variance(kind: SampledTimes, deviations: Deviations) -> float:
    """Return the variance of the time of all launches of a kind that passed, in ps²."""
    n = kind.n_passed
    return deviations.of_kind * (kind.error_weight**2 + n) + deviations.of_mean * n**2 + deviations.of_share * n
