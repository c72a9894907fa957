"""Reuse of launches: the time of a launch passes if launches like it have been simulated.

The first launches of a kind are its samples. Later launches of the kind pass with the duration that the samples
foresee. Each SIP has samples of its own, and those of other SIPs confirm them. The decision falls when the IO_CPU
begins the launch. A launch is a sample only if no other request was in flight on its SIP. Messages that map new memory
may be in flight: launches behind so many of them are a kind of their own. Kinds that cost little to simulate have more
samples. Of a long sample, repeated work is left out (`kernbench.triton_emu.repeats`), and the time of the rest passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from random import Random

from kernbench.common.values import state, value
from kernbench.core.log import Kind
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import Printed, QueueEvent
from kernbench.engine.launch_counts import count_launch, count_sip, first_end_ps, read_spans
from kernbench.engine.passed_launches import VARIED, Counts, ExtendedLaunch, LaunchKind, ReuseReport
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, PeCoord
from kernbench.runtime_api.launch import Launch
from kernbench.runtime_api.launch_kinds import kind_of
from kernbench.runtime_api.launch_times import DEVIATIONS, LaunchTimes, SampledTimes
from kernbench.runtime_api.requests import Purpose, Requests
from kernbench.runtime_api.run_request import ReuseRules
from kernbench.topology.hbm_refresh import slice_pace
from kernbench.triton_emu.repeats import RepeatedWork

MORE_SAMPLES = 2
MORE_COST, COST_OF_VARIED = 0.1, 0.03
"""Largest cost of all samples beyond the first ones, and of those of a kind whose first samples differ: shares of the
cost of all samples, in rows of the log"""
LEAST_ERROR = 0.01
"""The estimated error, as a share of the time that passed or of half the run, below which no samples are added"""
MOST_ERROR, COST_OF_ERROR = 0.01, 0.4
"""While the estimated error exceeds the first share of the time, further samples may cost the second share"""
LONG_BYTES = 4 << 20
"""Bytes of tensors for each PE of a launch whose repeated work may be left out"""
CHECKED_EARLY = 4
"""Parts of the launches to check; one of them is chosen whenever the number of launches grows by a factor of e"""
_SEED = 0


@value
class CheckedLaunch:
    """A launch that would have passed, but was simulated: the foreseen duration, and the simulated one, in ps."""

    foreseen_ps: int
    duration_ps: int


@state(eq=False)
class _Kind:
    """A kind in this run, on one SIP.

    ``name``: the name of its first launch. ``uses``, ``times``: its samples. ``n_maps``: the messages in flight that
    map memory when such a launch begins. ``alike``: the kinds that differ by the SIP or by ``n_maps`` alone.
    ``refused``: its kernel prints, or uses queues to other PEs. ``rows``: rows of the log of a sample; ``more_rows``:
    those of all samples beyond the first ones. ``is_varied``: the first samples differ.
    """

    name: str
    uses: LaunchKind
    times: SampledTimes
    n_maps: int
    alike: Collection[_Kind]
    refused: bool = False
    rows: int = 0
    more_rows: int = 0
    is_varied: bool = False


@state(eq=False)
class _InFlight:
    """A request in flight.

    ``key``: what decides the kind of a launch; None for other requests, and for launches that cannot pass. ``targets``:
    the PEs of a launch. ``sip``: its SIP, None: any. ``waits``: a launch that the IO_CPU has not begun, or that has
    ended there. ``is_long``: its PEs have much to read or to write.
    """

    handle: RequestHandle
    targets: frozenset[PeCoord]
    sip: int | None
    is_map: bool
    waits: bool
    key: Hashable = None
    is_long: bool = False

    def meets(self, sip: int | None) -> bool:
        """Return True if a request on ``sip`` may use the same SIP."""
        return self.sip is None or sip is None or self.sip == sip


@state(eq=False)
class _Simulated:
    """A launch of a kind that the IO_CPU has begun and simulates.

    ``is_sample``: no other request was in flight on its SIP, except the maps of its kind before it. ``before``: the
    counts of the SIP at its begin. ``first_row``: the rows of the log at its begin. ``foreseen_ps``: the duration that
    it is to check. ``n_messages``: the messages that it has sent to its own PEs and not received.
    """

    kind: _Kind
    sip: int
    targets: frozenset[PeCoord]
    is_sample: bool
    before: Counts | None
    first_row: int
    foreseen_ps: int | None = None
    n_messages: int = 0


class ReusedLaunches:
    """The launches of a context by kind, and the decision which of them pass.

    ``is_loading``: returns True in an initialisation that the run's time excludes; the error is that of later launches.
    """

    def __init__(
        self, engine: GraphEngine, requests: Requests, rules: ReuseRules, is_loading: Callable[[], bool]
    ) -> None:
        self.rules = rules
        self.kinds: list[_Kind] = []
        self._kinds_of: dict[Hashable, dict[tuple[int, int], _Kind]] = {}  # by launch; by SIP, and the maps before it
        self.checks: list[CheckedLaunch] = []
        self.n_launches = 0
        self._engine, self._requests, self._is_loading = engine, requests, is_loading
        self._in_flight: dict[int, _InFlight] = {}
        self._simulated: dict[int, _Simulated] = {}
        self._random = Random(_SEED)
        self._passable_ps = 0.0  # of launches that passed or were checked
        self._first: int | None = None  # the first launch in the run's time
        self._rows = self._more_rows = 0  # of all samples, and of those beyond the first ones
        self._times = LaunchTimes(slice_pace(engine.spec.cube).clock)
        requests.on_submit = self._note
        engine.machine.hooks.printed.subscribe(self._on_print)
        engine.machine.hooks.queue.subscribe(self._on_message)

    def submit(self, launches: Sequence[Launch]) -> list[RequestHandle]:
        """Start launches that form one piece of work; some may pass."""
        keys = [kind_of(launch, self._engine.spec.cube.hbm.piece_bytes) for launch in launches]
        handles = self._requests.submit_together(
            launch.message if key is None else replace(launch.message, on_device=self)
            for launch, key in zip(launches, keys, strict=True)
        )
        self.n_launches += len(launches)
        if self._first is None and not self._is_loading():
            self._first = handles[0].request_id
        for handle, key, launch in zip(handles, keys, launches, strict=True):
            request = self._in_flight[handle.request_id]
            request.key, request.waits = key, request.waits or key is not None
            nbytes = sum(shard.nbytes for layout in launch.tensors for shard in layout.shards)
            request.is_long = nbytes >= LONG_BYTES * len(request.targets)
        return handles

    def begin(self, launch: int, now_ps: int) -> int | None:
        """Decide about a launch that its IO_CPU begins: return the time in ps after which it passes; None: simulate."""
        self._prune()
        request = self._in_flight[launch]
        assert request.sip is not None, "a launch that may pass is on one SIP"
        request.waits = False
        met = [
            running
            for running in self._in_flight.values()
            if running is not request and not running.waits and running.meets(request.sip)
        ]
        for other in self._simulated.values():
            other.is_sample = other.is_sample and other.sip != request.sip
        n_maps = sum(running.is_map for running in met)
        kind = self._find_kind(request.key, request.handle.msg.title, request.sip, n_maps)
        if kind.refused:
            return None
        simulated = _Simulated(
            kind,
            request.sip,
            request.targets,
            is_sample=len(met) == n_maps == kind.n_maps,
            before=None,
            first_row=self._engine.machine.log.n_rows,
        )
        if not self._is_sampled(kind) or (kind.n_maps == n_maps and self._is_cheap(kind)):
            machine = self._engine.machine
            if simulated.is_sample and (request.is_long or self._needs_counts(kind)):
                simulated.before = count_sip(machine, request.sip)
            if simulated.is_sample and request.is_long:
                machine.passed.repeated[launch] = RepeatedWork()
            self._simulated[launch] = simulated
            return None
        if any(request.targets & running.targets for running in met):
            return None
        foreseen_ps = self._times.foresee(kind.times)(now_ps)
        if not self._is_loading():
            if kind.n_maps == n_maps and self._is_checked(kind, self.rules):
                simulated.foreseen_ps = foreseen_ps
                self._simulated[launch] = simulated
                return None
            self._times.count_passed(kind.times)
        self._engine.machine.passed.add(launch, kind.uses)
        return foreseen_ps

    def end(self, launch: int, now_ps: int) -> int:
        """Note that a launch has ended on its SIP without a failure. It becomes a sample if it ran alone.

        Return the time in ps of the work that was left out.
        """
        self._in_flight[launch].waits = True
        simulated = self._simulated.pop(launch, None)
        if simulated is None:
            return 0
        rest_ps = self._note_part(launch, simulated, now_ps)
        self._note_end(launch, simulated, now_ps + rest_ps)
        return rest_ps

    def _note_end(self, launch: int, simulated: _Simulated, now_ps: int) -> None:
        kind, begin_ps = simulated.kind, self._engine.machine.log.on_device[launch][0]
        kind.refused |= simulated.n_messages != 0
        if kind.refused:
            return
        if simulated.foreseen_ps is not None:
            self.checks.append(CheckedLaunch(simulated.foreseen_ps, now_ps - begin_ps))
        elif simulated.is_sample:
            self._add_sample(launch, simulated, begin_ps, now_ps)

    def _note_part(self, launch: int, simulated: _Simulated, now_ps: int) -> int:
        """Count the work that was left out of a launch, and return its time in ps.

        An element takes as long as a simulated one, without the start: until the first array has been loaded.
        """
        machine = self._engine.machine
        work = machine.passed.repeated.pop(launch, None)
        if work is None or not work.left_out:
            return 0
        assert simulated.before is not None, "work is left out only if the counts of a launch are known"
        counts = count_launch(machine, simulated.sip, simulated.before)
        machine.passed.extended[launch] = ExtendedLaunch(work.more, counts)
        begin_ps = machine.log.on_device[launch][0]
        loaded_ps = first_end_ps(machine, launch, (Kind.DMA_READ, Kind.DMA_WRITE), simulated.first_row, begin_ps)
        if not self._is_loading():
            self._times.count_part(work.more, loaded_ps - begin_ps)
        return round((now_ps - loaded_ps) * work.more)

    def list_samples(self) -> set[int]:
        """Return the simulated launches that stand for others of their kind, or may do so."""
        return {launch for kind in self.kinds for launch, _ in kind.uses.samples}

    def _find_kind(self, key: Hashable, name: str, sip: int, n_maps: int) -> _Kind:
        """Return the kind of a launch on ``sip`` behind ``n_maps`` messages.

        Launches behind messages are of the plain kind as soon as that has its samples.
        """
        kinds = self._kinds_of.setdefault(key, {})
        plain = kinds.get((sip, 0))
        if plain is not None and self._is_sampled(plain):
            return plain
        if (sip, n_maps) not in kinds:
            kinds[sip, n_maps] = _Kind(name, LaunchKind(), self._times.add_kind(), n_maps, kinds.values())
            self.kinds.append(kinds[sip, n_maps])
        return kinds[sip, n_maps]

    def _is_sampled(self, kind: _Kind) -> bool:
        """Return True if launches of a kind may pass.

        With a sample of its own, samples of kinds that are ``alike`` count too, as far as they confirm its duration.
        The ranks of a program therefore have one sample each.
        """
        mean_ps, n_samples = kind.times.mean_ps, len(kind.uses.samples)
        confirming = (
            abs(duration_ps - mean_ps) <= VARIED * mean_ps
            for alike in kind.alike
            if alike is not kind
            for duration_ps in alike.times.durations
        )
        return n_samples > 0 and (n_samples >= self.rules.samples or n_samples + sum(confirming) >= self.rules.samples)

    def _is_cheap(self, kind: _Kind) -> bool:
        """Return True if a further sample of a kind costs little beside all samples so far.

        Kinds share this cost equally. Those whose first samples differ may cost more, for two samples. While the error
        of the run is large, so may all kinds, in proportion to their parts of it. No sample is needed in an
        initialisation that does not count, nor while the error is small.
        """
        if self._is_loading() or self._is_exact():
            return False
        further = len(kind.uses.samples) - kind.uses.n_counted
        fair = COST_OF_VARIED if kind.is_varied and further < MORE_SAMPLES else MORE_COST / len(self.kinds)
        if self._has_room(kind, MORE_COST, fair):
            return True
        if self._times.error_ps() <= MOST_ERROR * self._engine.machine.clock.time:
            return False
        return self._has_room(kind, COST_OF_ERROR, COST_OF_ERROR * self._times.error_share(kind.times))

    def _is_exact(self) -> bool:
        """Return True if the error is small beside the time that passed, or beside a run of which a quarter passed."""
        error_ps, passed_ps, now_ps = self._times.error_ps(), self._times.passed_ps(), self._engine.machine.clock.time
        of_run_ps = now_ps / 2 if 4 * passed_ps > now_ps else 0.0
        return error_ps < LEAST_ERROR * max(passed_ps, of_run_ps)

    def _has_room(self, kind: _Kind, total: float, of_kind: float) -> bool:
        """Return True if the samples beyond the first ones, with one more of a kind, stay below two shares of all."""
        more_rows = self._more_rows + kind.rows
        return more_rows <= total * self._rows and kind.more_rows + kind.rows <= of_kind * self._rows

    def _is_checked(self, kind: _Kind, rules: ReuseRules) -> bool:
        """Return True if a launch that would pass is simulated instead, chosen at random.

        The chance is in proportion to the launch's time. It decreases with the number of launches, since the number to
        come is unknown.
        """
        self._passable_ps += kind.times.mean_ps
        left = (
            rules.check
            - len(self.checks)
            - sum(simulated.foreseen_ps is not None for simulated in self._simulated.values())
        )
        chance = rules.check / CHECKED_EARLY * kind.times.mean_ps / self._passable_ps
        return left > 0 and self._random.random() < chance

    def _prune(self) -> None:
        over = [launch for launch, request in self._in_flight.items() if request.handle.done]
        for launch in over:
            del self._in_flight[launch]
            self._simulated.pop(launch, None)
            self._engine.machine.passed.repeated.pop(launch, None)

    def _note(self, handle: RequestHandle, purpose: Purpose) -> None:
        """Note a submitted request. Launches that it meets are no samples, unless it maps memory or waits for them."""
        self._prune()
        sip = None if purpose.algorithm is not None else purpose.sip
        msg, is_map = handle.msg, purpose.phase == "map"
        targets = frozenset(msg.targets) if isinstance(msg, KernelLaunchMsg) else frozenset()
        waits = isinstance(msg, KernelLaunchMsg) and msg.in_order
        self._in_flight[handle.request_id] = _InFlight(handle, targets, sip, is_map, waits)
        if not is_map and not waits:
            for simulated in self._simulated.values():
                simulated.is_sample = simulated.is_sample and sip not in (None, simulated.sip)

    def _needs_counts(self, kind: _Kind) -> bool:
        """Return True for one of the first samples of a kind: their counts stand for those of all others."""
        return not self._is_sampled(kind)

    def _add_sample(self, launch: int, simulated: _Simulated, begin_ps: int, end_ps: int) -> None:
        machine, kind = self._engine.machine, simulated.kind
        counts: Counts | None = None
        if simulated.before is not None and self._needs_counts(kind):
            part = machine.passed.extended.get(launch)
            counts = part.whole() if part else count_launch(machine, simulated.sip, simulated.before)
        kind.uses.add_sample(launch, end_ps - begin_ps, counts)
        self._times.add(kind.times, begin_ps, end_ps, read_spans(machine, launch, simulated.first_row))
        kind.rows = machine.log.n_rows - simulated.first_row
        self._rows += kind.rows
        if counts is None:
            kind.more_rows += kind.rows
            self._more_rows += kind.rows
        elif not self._needs_counts(kind):
            kind.is_varied = self._times.spread(kind.times) > VARIED

    def report(self, run_ps: int) -> ReuseReport:
        """Return the report of a run of ``run_ps``."""
        varied = [kind for kind in self.kinds if kind.is_varied]
        largest = max(varied, key=lambda kind: self._times.spread(kind.times), default=None)
        errors = [check.foreseen_ps / max(1, check.duration_ps) - 1 for check in self.checks]
        log = self._engine.machine.log
        passed = self._engine.machine.passed.launches
        counted = [launch for launch in passed if self._first is not None and launch >= self._first]
        spans = [log.on_device[launch] for launch in counted if launch in log.on_device]
        share = sum(end_ps - begin_ps for begin_ps, end_ps in spans) / run_ps if run_ps else 0.0
        mean = sum(errors) / max(1, len(errors))
        deviation = (sum((error - mean) ** 2 for error in errors) ** 0.5) / max(1, len(errors) - 1)
        return ReuseReport(
            launches=self.n_launches,
            kinds=len(self.kinds),
            simulated=self.n_launches - len(passed),
            passed=len(passed),
            extended=len(self._engine.machine.passed.extended),
            varied=len(varied),
            largest="" if largest is None else largest.name,
            largest_spread=0.0 if largest is None else self._times.spread(largest.times),
            error=self._times.error_ps() / run_ps if run_ps else 0.0,
            checked=len(self.checks),
            check_error=mean * share,
            check_range=DEVIATIONS * deviation * share,
        )

    def _on_print(self, printed: Printed) -> None:
        self._refuse(printed.pe)

    def _on_message(self, event: QueueEvent) -> None:
        """Never pass launches that exchange messages with PEs outside the launch, or leave messages in queues."""
        if event.kind == "arrive":
            return
        for simulated in self._simulated.values():
            if event.pe in simulated.targets:
                simulated.n_messages += 1 if event.kind == "send" else -1
                simulated.kind.refused |= event.peer not in simulated.targets

    def _refuse(self, pe: PeCoord) -> None:
        """Never pass launches of the kinds that run on a PE now."""
        for simulated in self._simulated.values():
            if pe in simulated.targets:
                simulated.kind.refused = True
