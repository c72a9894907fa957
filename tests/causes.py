"""What holds of the causes in every log: a row begins when its cause has ended, or as much later as the rule says."""

from __future__ import annotations

from collections import Counter

from kernbench.common.units import ns_to_ps
from kernbench.core.log import BY, CAUSE, COMMIT, END, KIND, LAST, READ, START, WIDTH, By, Kind
from kernbench.engine.machine import Machine

AT_END = {
    By.ISSUE,
    By.OPERAND,
    By.MEMORY_END,
    By.SPACE,
    By.ENGINE,
    By.SLOT,
    By.MESSAGE,
    By.CREDIT,
    By.ORDER,
    By.BARRIER,
    By.KERNEL,
    By.HOST,
    By.TRANSLATION,
    By.FENCE,
}


def accessed(rows: list[int], row: int) -> int:
    """When it had read, or written, what it accesses in memory."""
    column = {Kind.DMA_READ: READ, Kind.DMA_WRITE: COMMIT, Kind.ATOMIC: COMMIT}.get(Kind(rows[row + KIND]), END)
    return rows[row + column]


def written(rows: list[int], row: int) -> int:
    """When what it writes is where others see it."""
    return rows[row + (COMMIT if rows[row + KIND] in (Kind.DMA_WRITE, Kind.ATOMIC) else END)]


def check_causes(machine: Machine) -> Counter[By]:
    """Every cause attains the start of its row; how many there are of each."""
    rows, spec = machine.log.rows, machine.spec
    setup = spec.pe.dma.setup_ps
    queue = ns_to_ps(spec.pe.components.pe_ipcq.attrs.overhead_ns)
    found: Counter[By] = Counter()
    for row in range(0, len(rows), WIDTH):
        by, cause, start = By(rows[row + BY]), rows[row + CAUSE], rows[row + START]
        found[by] += 1
        what = f"{Kind(rows[row + KIND]).name} {row // WIDTH} at {start} by {by.name}"
        if by is By.NOTHING:
            assert cause < 0, what
            continue
        assert 0 <= cause != row, what
        what += f" after {Kind(rows[cause + KIND]).name} {cause // WIDTH}: {rows[cause : cause + WIDTH]}"
        end = rows[cause + END]
        if by in AT_END:
            assert start == end, what
        elif by in (By.MEMORY, By.MEMORY_RANGE):
            assert start == accessed(rows, cause), what
        elif by is By.SETUP:
            assert start == rows[cause + START] + setup, what
        elif by is By.QUEUE:
            assert start == rows[cause + START] + queue, what
        elif by is By.POLL:
            assert end <= start, what
        else:
            assert by is By.START, what
            assert 0 <= end < start, what
        if rows[row + LAST] >= 0 and rows[row + KIND] != Kind.RAW:
            last = rows[row + LAST]
            ends = rows[last + END] if rows[row + KIND] != Kind.FENCE else written(rows, last)
            assert ends == rows[row + END], what
    return found
