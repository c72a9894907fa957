"""Durations of launches of one kind, foreseen from samples, and their errors.

Launches of a kind differ most by the refreshes that they meet. A refresh stops all banks at once, and so stretches a
launch that reads memory at that time. Writes wait in queues, and the launch continues. A sample therefore consists of
its duration, and of the time of refreshes during its reads. Its reads also tell which refreshes a later launch will
meet. The foreseen duration is the mean of the samples, corrected for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from kernbench.common.values import state, value
from kernbench.topology.hbm_refresh import RefreshClock

PRIOR_SAMPLES = 2
"""Samples of other kinds that count as much as those of a kind for its standard deviation"""
COMMON_SHARE, SHARE_DEVIATION = 0.9, 0.15
"""Share of a refresh during reads that stretches a launch, before any sample, and its deviation among kinds"""
REFRESH_VARIANCE = 0.02
"""Variance of the share by which one refresh stretches a launch"""
DEVIATIONS = 2
"""Standard deviations that a stated error covers"""


Spans: TypeAlias = Sequence[tuple[int, int]]
"""Begins and ends of the reads of a launch, in ps, in order"""


def met_ps(clock: RefreshClock, spans: Spans) -> int:
    """Return the time of refreshes during reads, in ps."""
    return sum(end - begin - (clock.into(end) - clock.into(begin)) for begin, end in spans)


@value
class Reads:
    """The reads of a launch without refreshes: for each span, the time before it and its length, in ps."""

    spans: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(clock: RefreshClock, begin_ps: int, spans: Spans) -> Reads:
        """Return the reads of a launch that began at ``begin_ps``."""
        ends = [begin_ps, *[end for _, end in spans]]
        return Reads(
            tuple(
                [
                    (begin - before, clock.into(end) - clock.into(begin))
                    for before, (begin, end) in zip(ends, spans, strict=False)
                ]
            )
        )

    def met_ps(self, clock: RefreshClock, begin_ps: int) -> int:
        """Return the time of refreshes during the reads of a launch that begins at ``begin_ps``, in ps."""
        met, now_ps = 0, begin_ps
        for before, length in self.spans:
            begin = now_ps + before
            now_ps = clock.out(clock.into(begin) + length)
            met += now_ps - begin - length
        return met


@value
class ForeseenTime:
    """The duration of a launch as a function of its begin, in ps.

    ``mean_ps``, ``mean_met_ps``: the means of the samples' durations and of the refreshes during their ``reads``.
    ``share``: the share of a refresh by which it stretches the launch.
    """

    mean_ps: float
    mean_met_ps: float
    reads: Reads
    share: float
    clock: RefreshClock

    def __call__(self, begin_ps: int) -> int:
        """Return the duration of a launch that begins at ``begin_ps``."""
        met = self.reads.met_ps(self.clock, begin_ps)
        return max(0, round(self.mean_ps + self.share * (met - self.mean_met_ps)))


@state
class SampledTimes:
    """The samples of a kind: durations, and refreshes during their reads, in ps.

    ``reads``: those of the sample that met least of refreshes. ``error_weight``: the sum over passed launches of the
    standard error of their mean, in standard deviations. ``n_passed``: their number.
    """

    durations: list[int] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    reads: Reads = Reads()
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

    def add(self, kind: SampledTimes, begin_ps: int, end_ps: int, spans: Spans) -> None:
        """Add a sample of a kind. ``spans``: its reads."""
        met = met_ps(self.clock, spans)
        if met < min(kind.met, default=met + 1):
            kind.reads = Reads.of(self.clock, begin_ps, spans)
        kind.durations.append(end_ps - begin_ps)
        kind.met.append(met)
        self._deviations = None
        products = [kind.products for kind in self.kinds if kind.durations]
        self._common_share = self._fit((sum(sums) for sums in zip(*products, strict=True)), COMMON_SHARE)

    def foresee(self, kind: SampledTimes) -> ForeseenTime:
        """Return the duration of the next launch of a kind."""
        return ForeseenTime(kind.mean_ps, kind.mean_met_ps, kind.reads, self._share(kind), self.clock)

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

    def passed_ps(self) -> float:
        """Return the time that passed, in ps."""
        return sum(kind.n_passed * kind.mean_ps for kind in self.kinds)

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
                busy_ps = sum(length for _, length in kind.reads.spans)
                unusual_ps = busy_ps * average_met - kind.mean_met_ps
                samples_ps2 = sum(met * min(met, outage_ps) for met in kind.met) / max(1, len(kind.met)) ** 2
                unknown = 1 - self._fitted(kind)  # samples that met refreshes differ by these shares, too
                of_kinds = unknown * (SHARE_DEVIATION * unusual_ps) ** 2
                of_launches = unknown * REFRESH_VARIANCE * busy_ps * average_met * outage_ps
                self._deviations.append(Deviations(of_kind, of_kinds + REFRESH_VARIANCE * samples_ps2, of_launches))
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
