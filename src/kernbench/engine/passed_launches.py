"""Launches without rows: their time passed without a simulation, or their rows are folded.

Simulated launches of the same kind are the samples of such a launch. A sample counts as often as launches passed or
were folded in its place. Figures that reports derive from the log use these weights by launch. Launches that passed
also add counts that only components hold, such as the bytes of links. These counts are sampled: as arrays by name,
before and after each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.figures import figure
from kernbench.common.values import state, value
from kernbench.triton_emu.repeats import RepeatedWork


class PartCount(NamedTuple):
    """The name of a count that the parts of one kind add up."""

    kind: str
    name: str


Counts: TypeAlias = Mapping[str | PartCount, NDArray[np.int64]]
"""Additive counts by name: of links by index, and a number for all parts of a kind"""
LINK_BYTES, LINK_BUSY_PS = "bytes of links", "busy ps of links"
ORDERS, ANSWERS = "orders of the host", "answers to the host"
VARIED = 0.02
"""Difference between the first samples of a kind, as a share of their mean, beyond which it is sampled twice more"""


@value(kw_only=True)
class ReuseReport:
    """The reuse of launches in a run.

    ``varied``: the kinds whose samples differed by more than 2 %; ``largest``: that with the largest difference.
    ``error``: the error of the run's time, as a share, estimated from the differences of samples. ``check_error``: the
    mean error of checked launches, by the share of the run's time that passed.
    """

    launches: int = figure("launches of the program")
    kinds: int = figure("kinds of launches")
    simulated: int = figure("simulated launches")
    passed: int = figure("launches that passed without a simulation")
    extended: int = figure("long launches of which a part was simulated", optional=True, default=0)
    varied: int = figure("kinds whose first samples differ by more than 2 %")
    largest: str = figure("the kind whose samples differ most", optional=True, column=False, default="")
    largest_spread: float = figure("the difference between its samples, as a share", optional=True, default=0.0)
    error: float = figure("the estimated error of the time, as a share")
    checked: int = figure("launches simulated to check the error", optional=True, default=0)
    check_error: float = figure("the error of the run's time by these launches, as a share", optional=True, default=0.0)
    check_range: float = figure("two standard deviations of that error", optional=True, default=0.0)

    def __str__(self) -> str:
        largest = f" (largest: {self.largest!r} {self.largest_spread:.1%})" if self.largest else ""
        text = (
            f"reuse: {self.launches:,} launches of {self.kinds:,} kinds, {self.simulated:,} simulated; kinds whose "
            f"samples differ by more than {VARIED:.0%}: {self.varied}{largest}; run ± {self.error:.1%}"
        )
        if self.extended:
            text += f"; of {self.extended:,} long launches a part was simulated"
        return text + (
            f"; by {self.checked:,} checked launches {self.check_error:+.1%} ± {self.check_range:.1%}"
            if self.checked
            else ""
        )


@state
class LaunchKind:
    """Launches that are alike: the durations and counts of samples, and the launches that passed.

    ``samples``: the launch and its time on the device in ps, for each sample. ``counts``: the sum of the counts of
    ``n_counted`` samples. ``passed``: the launches that passed, by number. ``folded``: those that were simulated, and
    whose rows are folded.
    """

    samples: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[str | PartCount, NDArray[np.int64]] = field(default_factory=dict)
    n_counted: int = 0
    passed: list[int] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)

    @property
    def without_rows(self) -> list[int]:
        """The launches of the kind for which the samples stand."""
        return self.passed + self.folded

    def add_sample(self, launch: int, duration_ps: int, counts: Counts | None) -> None:
        """Add a simulated launch. Without ``counts``, those of the other samples stand for it."""
        self.samples.append((launch, duration_ps))
        if counts is not None:
            self.n_counted += 1
            for name, content in counts.items():
                self.counts[name] = self.counts[name] + content if name in self.counts else content

    @property
    def typical(self) -> int:
        """The sample whose duration is closest to the mean."""
        mean_ps = sum(duration_ps for _, duration_ps in self.samples) / len(self.samples)
        return min(self.samples, key=lambda sample: abs(sample[1] - mean_ps))[0]


class WorkSums(NamedTuple):
    """The sums of works: an entry for each engine and part.

    ``engine`` are indices into the list of engines, ``part`` numbers of parts. ``busy_ps``: the length of the union of
    the works, the first of which begins at ``begin_ps``. The last one ends at ``end_ps``.
    """

    engine: NDArray[Any]
    part: NDArray[Any]
    records: NDArray[Any]
    busy_ps: NDArray[Any]
    begin_ps: NDArray[Any]
    end_ps: NDArray[Any]


@value(eq=False)
class ExtendedLaunch:
    """A launch of which a part was simulated: how often this part counts ``more``, and the counts of this part."""

    more: float
    counts: Counts

    def whole(self) -> Counts:
        """Return the counts of the complete launch."""
        return {name: np.rint(content * (1 + self.more)).astype(np.int64) for name, content in self.counts.items()}


@state
class PassedLaunches:
    """The kinds of the launches of a run, as far as launches of them have no rows, and the kind of such a launch.

    ``works``: the sums of the folded launches. ``extended``: the launches of which only a part was simulated, by
    number. ``repeated``: the work of launches on their device whose repeated work is left out, by number.
    """

    kinds: list[LaunchKind] = field(default_factory=list)
    works: list[WorkSums] = field(default_factory=list)
    extended: dict[int, ExtendedLaunch] = field(default_factory=dict)
    repeated: dict[int, RepeatedWork] = field(default_factory=dict)
    _kind_of: dict[int, LaunchKind] = field(default_factory=dict)
    _folded: dict[int, LaunchKind] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if all launches were simulated completely."""
        return not self.kinds and not self.extended

    def add(self, launch: int, kind: LaunchKind) -> None:
        """Add a launch that passes with the mean of the samples of its kind."""
        if not kind.without_rows:
            self.kinds.append(kind)
        kind.passed.append(launch)
        self._kind_of[launch] = kind

    def fold(self, launch: int, kind: LaunchKind, works: WorkSums) -> None:
        """Add a launch whose rows are folded; the sample of its kind stands for it, except for its ``works``."""
        if not kind.without_rows:
            self.kinds.append(kind)
        kind.folded.append(launch)
        self._folded[launch] = kind
        self.works.append(works)

    @property
    def folded(self) -> Set[int]:
        """The launches whose rows are folded."""
        return self._folded.keys()

    @property
    def without_rows(self) -> Set[int]:
        """The launches that passed, and those whose rows are folded."""
        return self._kind_of.keys() | self._folded.keys()

    @property
    def launches(self) -> Set[int]:
        """The launches that passed."""
        return self._kind_of.keys()

    def sample_of(self, launch: int) -> int:
        """Return the typical sample of a launch without rows; ``launch`` itself if it has rows."""
        kind = self._kind_of.get(launch) or self._folded.get(launch)
        return launch if kind is None else kind.typical

    def weights(self, launches: NDArray[np.signedinteger[Any]], *, for_folded: bool = True) -> NDArray[np.float64]:
        """Return how often each of ``launches`` counts: 1, and more for samples and for launches simulated in part.

        ``for_folded``: samples count also for folded launches, and not only for those that passed.
        """
        if not self.extended and not any(kind.without_rows if for_folded else kind.passed for kind in self.kinds):
            return np.broadcast_to(np.float64(1.0), launches.shape)
        # The last entry is for -1, no launch.
        table = np.ones(max(launches.max(initial=0), *self.without_rows, *self.extended, 0) + 2)
        for kind in self.kinds:
            for launch, _ in kind.samples:
                table[launch] += len(kind.without_rows if for_folded else kind.passed) / len(kind.samples)
        for launch in self.extended:
            table[launch] *= self.extension(launch)
        weights: NDArray[np.float64] = table[launches]
        return weights

    def extension(self, launch: int) -> float:
        """Return how often the rows of a launch count for the launch itself: once, and more if a part was simulated."""
        extended = self.extended.get(launch)
        return 1.0 if extended is None else 1 + extended.more

    def shifts(self, on_device: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the typical sample of each kind, and the times in ps from its begin to those of others of its kind."""
        for kind in self.kinds:
            begins = [on_device[launch][0] for launch in kind.without_rows if launch in on_device]
            yield kind.typical, np.array(begins, np.int64) - on_device[kind.typical][0]

    def part_counts(self) -> Mapping[PartCount, int]:
        """Return the counts of parts that all passed launches add."""
        all_counts = [*[kind.counts for kind in self.kinds], *[launch.counts for launch in self.extended.values()]]
        names = {name for counts in all_counts for name in counts if isinstance(name, PartCount)}
        return {name: int(self.counts(name, 1)[0]) for name in sorted(names)}

    def counts(self, name: str | PartCount, size: int) -> NDArray[np.int64]:
        """Return the counts of all passed launches, by index; ``size``: the length of the array."""
        total = np.zeros(size)
        for kind in self.kinds:
            if name in kind.counts:
                total += kind.counts[name] * (len(kind.passed) / kind.n_counted)
        for launch in self.extended.values():
            if name in launch.counts:
                total += launch.counts[name] * launch.more
        return np.rint(total).astype(np.int64)
