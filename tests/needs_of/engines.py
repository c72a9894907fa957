"""What the engines of PEs need: tiles in the pipeline, operations, descriptors."""

from __future__ import annotations

from itertools import pairwise

from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.components.pe_scheduler import TileWork
from kernbench.components.stage import Stage, Token
from kernbench.core.log import END, KIND, LAUNCH, PARENT, PART, START, TILE, WIDTH, By, Kind, Row
from kernbench.messages.requests import PeCoord, PeDmaMsg
from needs_of.kernels import Kernels
from needs_of.rows import Need, Needs, Run, last


class Engines:
    """The stages of tiles, MATH, and the channels of the DMA."""

    def __init__(self, run: Run, kernels: Kernels) -> None:
        self.run = run
        self._kernels = kernels
        spec = run.machine.spec
        self._setup_ps = spec.pe.dma.setup_ps
        self._queue_ps = ns_to_ps(spec.pe.components.pe_ipcq.attrs.overhead_ns)
        self._tile_rows: dict[tuple[Row, int, Kind], list[Row]] = {}
        # Each stage passes its tokens on, and lets go of a slot for each.
        self._passed: dict[tuple[Stage, Token], Need] = {}
        self._places: dict[Stage, tuple[dict[Token, int], Needs]] = {}

    def derive(self) -> None:
        """The needs of their rows."""
        self._pipelines()
        self._math()
        self._dma()
        self._raw()

    def _pipelines(self) -> None:
        rows = self.run.rows
        for row in self.run.all:
            if rows[row + TILE] >= 0:
                key = rows[row + PARENT], rows[row + TILE], Kind(rows[row + KIND])
                self._tile_rows.setdefault(key, []).append(row)
        tokens: dict[Token, list[Stage]] = {}
        for stage, takers in self.run.engine.takers.items():
            for token in takers:
                tokens.setdefault(token, [])
            latest: Need | None = None
            for token in takers:
                row = max(self._in_stage(stage, token), key=lambda each: rows[each + END])
                own = self.run.ended(row, By.OPERAND)
                if stage.name.startswith("dma") and latest is not None and latest.at >= own.at:
                    own = latest  # in order
                latest = self._passed[stage, token] = own
            passed = sorted(self._passed[stage, token]._replace(by=By.SLOT) for token in takers)
            self._places[stage] = {token: at for at, token in enumerate(takers)}, passed
        per_part: dict[int, list[Token]] = {}
        for token in tokens:
            if isinstance(token.work, TileWork):
                (issue,) = self._tile_rows[token.work.plan.row, token.work.number, Kind.TILE_ISSUE]
                per_part.setdefault(rows[issue + PART], []).append(token)
        for given in per_part.values():
            self._pipeline(sorted(given, key=self._issue_of))

    def _issue_of(self, token: Token) -> Row:
        return self._tile_rows[token.work.plan.row, token.work.number, Kind.TILE_ISSUE][0]

    def _in_stage(self, stage: Stage, token: Token) -> list[Row]:
        if not isinstance(token.work, TileWork):
            return [token.row]
        kinds = {"dma_in": Kind.DMA_READ, "dma_out": Kind.DMA_WRITE, "issue": Kind.TILE_ISSUE}
        kind = kinds[stage.name] if stage.name in kinds else Kind[stage.name.upper()]
        return self._tile_rows[token.work.plan.row, token.work.number, kind]

    def _pipeline(self, tokens: list[Token]) -> None:
        """The tiles of a PE, in the order in which they are issued."""
        in_flight = self.run.machine.spec.pe.components.pe_scheduler.attrs.tiles_in_flight
        retired = sorted(self._passed[token.route[0], token]._replace(by=By.SLOT) for token in tokens)
        for number, token in enumerate(tokens):
            issue, plan = self._issue_of(token), token.work.plan
            needs = (
                self.run.of_instant(retired, number - in_flight)
                + self._plan(plan.row)
                + self._claim(token.route[-2], token)
            )
            if number:
                needs.append(self.run.ended(self._issue_of(tokens[number - 1]), By.ENGINE))
            self.run.needs[issue] = needs
            if number == 0 or tokens[number - 1].work.plan is not plan:  # a command begins with its first tile
                self.run.needs[plan.row] = needs
        stages = {stage for token in tokens for stage in token.route[:-1]}
        for stage in stages:
            arrange = self._dma_stage if stage.name.startswith("dma") else self._unit
            arrange(stage, self.run.engine.takers[stage])

    def _plan(self, row: Row) -> Needs:
        """What the command of a plan waited for before it came to the scheduler."""
        for programs in self.run.engine.programs.values():
            for program in programs:
                for serial, each in program.rows.items():
                    if each == row and (program, serial) in self._kernels.ready:
                        return self._kernels.ready[program, serial]
        raise AssertionError(f"no command has row {row // WIDTH}")

    def _claim(self, stage: Stage, token: Token) -> Needs:
        """The slot of ``stage`` that a token takes when it begins in the one before."""
        place, passed = self._places[stage]
        return self.run.of_instant(passed, place[token] - self.run.engine.slots[stage])

    def _before(self, stage: Stage, token: Token) -> Need:
        """It comes from the stage before."""
        before = token.route[token.route.index(stage) + 1]
        if before.name == "issue":
            return self.run.ended(self._issue_of(token), By.OPERAND)
        return self._passed[before, token]

    def _enters(self, stage: Stage, token: Token) -> Needs:
        """What a token needs to begin in a stage, beside the stage itself."""
        at = token.route.index(stage)
        return [self._before(stage, token), *(self._claim(token.route[at - 1], token) if at else ())]

    def _dma_stage(self, stage: Stage, tokens: list[Token]) -> None:
        ahead: Needs = []
        for token in tokens:
            ahead = last([*ahead, *self._enters(stage, token)])
            for row in self._in_stage(stage, token):
                self.run.needs[row] = ahead

    def _unit(self, stage: Stage, tokens: list[Token]) -> None:
        made = sorted((self._in_stage(stage, token)[0], at) for at, token in enumerate(tokens))
        busy: Needs = []
        for row, at in made:
            token = tokens[at]
            if isinstance(token.work, TileWork):
                self.run.needs[row] = [*self._enters(stage, token), *busy]
            busy = [self.run.ended(row, By.ENGINE)]

    def _math(self) -> None:
        """Single commands have the engine after what was there before; they hold slots of it as tiles do."""
        for stage, tokens in self.run.engine.takers.items():
            if stage.name != "math":
                continue
            made = sorted(self._in_stage(stage, token)[0] for token in tokens)
            for before, row in pairwise(made):
                if self.run.rows[row + TILE] < 0:
                    self.run.needs[row] = [*self.run.needs[row], self.run.ended(before, By.ENGINE)]

    # The DMA.

    def _dma(self) -> None:
        """Descriptors of a channel are set up one after the other."""
        dmas = (Kind.DMA_READ, Kind.DMA_WRITE, Kind.ATOMIC, Kind.RAW)
        for kinds in (dmas, (Kind.SEND,)):
            of_part: dict[int, list[Row]] = {}
            for kind in kinds:
                for row in self.run.of_kind[kind]:
                    if kind is not Kind.RAW or self.run.rows[row + LAUNCH] < 0:
                        of_part.setdefault(self.run.rows[row + PART], []).append(row)
            for given in of_part.values():
                self._channel(sorted(given, key=lambda row: (self.run.rows[row + START], row)))

    def _channel(self, given: list[Row]) -> None:
        rows = self.run.rows
        for row in given:
            if rows[row + KIND] == Kind.SEND:
                message = rows[row + PARENT]
                self.run.needs[row] = [Need(rows[message + START] + self._queue_ps, message, By.QUEUE)]
        for before, row in pairwise(given):
            self.run.needs[row] = [
                *self.run.needs.get(row, []),
                Need(rows[before + START] + self._setup_ps, before, By.SETUP),
            ]

    def _raw(self) -> None:
        """Raw traffic: so many descriptors of a request at once."""
        raw = [row for row in self.run.of_kind[Kind.RAW] if self.run.rows[row + LAUNCH] < 0]
        streams: dict[PeCoord, list[PeDmaMsg]] = {}
        for handle in self.run.engine.handles:
            if isinstance(handle.msg, PeDmaMsg):
                streams.setdefault(handle.msg.pe, []).append(handle.msg)
        for pe, messages in streams.items():
            part = self.run.log.part(pe_part(*pe, "pe_dma"))
            mine = iter(sorted((row for row in raw if self.run.rows[row + PART] == part), key=self._start))
            for msg in messages:  # one after the other on a PE, in these tests
                stream = [next(mine) for _ in range(msg.repeat)]
                ends = [self.run.ended(each, By.SLOT) for each in stream]
                for number, row in enumerate(stream):
                    before = self.run.nth(ends, number - msg.outstanding)
                    self.run.needs[row] = [*self.run.needs.get(row, []), *(before or self.run.host(msg.request_id))]

    def _start(self, row: Row) -> int:
        return self.run.rows[row + START]
