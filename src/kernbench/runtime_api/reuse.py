"""Reuse of launches: the time of a launch passes if launches like it have been simulated.

The first launches of a kind are its samples. Later launches of the kind pass with the mean duration of the samples. A
launch is a sample only if no other request was in flight on its SIP.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from random import Random

from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import Printed, QueueEvent
from kernbench.engine.launch_counts import Counts, LaunchKind, count_launch, count_sip
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, PeCoord
from kernbench.runtime_api.launch import Launch
from kernbench.runtime_api.launch_kinds import kind_of
from kernbench.runtime_api.requests import Purpose, Requests
from kernbench.runtime_api.run_request import ReuseRules

VARIED = 0.02
"""Difference between the samples of a kind, as a share of their mean, beyond which the kind is sampled twice more"""
MORE_SAMPLES = 2
_SEED = 0


@value
class CheckedLaunch:
    """A launch that would have passed, but was simulated: its kind, and its duration on the device in ps."""

    kind: LaunchKind
    duration_ps: int


@state(eq=False)
class _Kind:
    """A kind in this run. ``name``: the name of its first launch. ``refused``: its kernel prints or uses queues."""

    name: str
    uses: LaunchKind
    wanted: int
    n_launches: int = 0
    refused: bool = False


@state(eq=False)
class _Running:
    """A request in flight. ``sips``: its SIPs, None: any. ``alone``: no other request was in flight on its SIP."""

    handle: RequestHandle
    sip: int | None
    alone: bool
    kind: _Kind | None = None
    before: Counts | None = None
    is_check: bool = False

    def meets(self, sip: int | None) -> bool:
        """Return True if a request on ``sip`` may use the same SIP."""
        return self.sip is None or sip is None or self.sip == sip

    @property
    def targets(self) -> frozenset[PeCoord]:
        """The PEs of a launch."""
        msg = self.handle.msg
        return frozenset(msg.targets) if isinstance(msg, KernelLaunchMsg) else frozenset()


class ReusedLaunches:
    """The launches of a context by kind, and the decision which of them pass. Without ``rules``, none does."""

    def __init__(self, engine: GraphEngine, requests: Requests, rules: ReuseRules | None) -> None:
        self.rules = rules
        self.kinds: dict[Hashable, _Kind] = {}
        self.checks: list[CheckedLaunch] = []
        self.n_launches = 0
        self._engine, self._requests = engine, requests
        self._running: list[_Running] = []
        self._random = Random(_SEED)
        self._n_passable = 0
        if rules is not None:
            requests.on_submit = self._note
            engine.machine.hooks.printed.subscribe(self._on_print)
            engine.machine.hooks.queue.subscribe(self._on_message)

    @property
    def is_on(self) -> bool:
        """True in a run that reuses launches."""
        return self.rules is not None

    def submit(self, launches: Sequence[Launch]) -> list[RequestHandle]:
        """Start launches that form one piece of work; some may pass."""
        if self.rules is None:
            return self._requests.submit_together(launch.message for launch in launches)
        chosen = [self._choose(launch, self.rules) for launch in launches]
        handles = self._requests.submit_together(message for message, _, _ in chosen)
        for handle, (message, kind, is_check) in zip(handles, chosen, strict=True):
            if kind is None:
                continue
            if message.passed_ps is None:
                self._follow(handle, kind, is_check=is_check)
            else:
                self._engine.machine.passed.add(handle.request_id, kind.uses)
        return handles

    def _choose(self, launch: Launch, rules: ReuseRules) -> tuple[KernelLaunchMsg, _Kind | None, bool]:
        """Return the message of a launch, with its time if the launch passes; its kind, and True for a check."""
        message = launch.message
        self.n_launches += 1
        key = kind_of(launch, self._access_bytes)
        if key is None or len({sip for sip, _, _ in message.targets}) > 1:
            return message, None, False
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = _Kind(message.title, LaunchKind(), rules.samples)
        kind.n_launches += 1
        if kind.refused:
            return message, None, False
        if len(kind.uses.samples) < kind.wanted:
            return message, kind, False
        self._prune()
        targets = frozenset(message.targets)
        if any(targets & running.targets for running in self._running):
            return message, None, False
        self._n_passable += 1
        if self._is_checked(rules):
            return message, kind, True
        return replace(message, passed_ps=kind.uses.mean_ps), kind, False

    def _is_checked(self, rules: ReuseRules) -> bool:
        """Return True if a launch that would pass is simulated instead.

        The number of launches is unknown, so the share of checks decreases with their number.
        """
        left = rules.check - len(self.checks)
        return left > 0 and self._random.random() < rules.check / 6 / self._n_passable

    @property
    def _access_bytes(self) -> int:
        return self._engine.spec.cube.hbm.access_bytes or 64

    def _prune(self) -> None:
        self._running = [running for running in self._running if not running.handle.done]

    def _note(self, handle: RequestHandle, purpose: Purpose) -> None:
        """Note a submitted request. Requests that are in flight together are no samples."""
        self._prune()
        sip = None if purpose.algorithm is not None else purpose.sip
        met = [running for running in self._running if running.meets(sip)]
        for running in met:
            running.alone = False
        self._running.append(_Running(handle, sip, not met))

    def _follow(self, handle: RequestHandle, kind: _Kind, *, is_check: bool) -> None:
        """Make a simulated launch a sample of its kind when it has ended, if it runs alone."""
        running = next(running for running in self._running if running.handle is handle)
        running.kind, running.is_check = kind, is_check
        if running.sip is not None and running.alone and not is_check:
            running.before = count_sip(self._engine.machine, running.sip)
        handle.on_end = lambda _: self._on_end(running)

    def _on_end(self, running: _Running) -> None:
        handle, kind = running.handle, running.kind
        times = self._engine.machine.log.on_device.get(handle.request_id)
        assert kind is not None, "only launches of a kind are followed"
        if times is None or kind.refused or handle.outcome is None or handle.outcome.error is not None:
            return
        duration_ps = times[1] - times[0]
        if running.is_check:
            self.checks.append(CheckedLaunch(kind.uses, duration_ps))
        elif running.alone and running.before is not None and running.sip is not None:
            counts = count_launch(self._engine.machine, running.sip, running.before)
            kind.uses.add_sample(handle.request_id, duration_ps, counts)
            if len(kind.uses.samples) == self.rules.samples and kind.uses.spread > VARIED:
                kind.wanted += MORE_SAMPLES

    def _on_print(self, printed: Printed) -> None:
        self._refuse(printed.pe)

    def _on_message(self, event: QueueEvent) -> None:
        if event.kind != "arrive":
            self._refuse(event.pe)

    def _refuse(self, pe: PeCoord) -> None:
        """Never pass launches of the kinds that run on a PE now."""
        for running in self._running:
            if running.kind is not None and pe in running.targets and not running.handle.done:
                running.kind.refused = True
