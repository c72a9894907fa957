"""Which bytes of its PE's TCM a command reads and writes, as far as operands say."""

from __future__ import annotations

from kernbench.messages.commands import (
    AtomicCommand,
    DotCommand,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MathComposite,
    PeCommand,
    PrintCommand,
    SendCommand,
    StoreCommand,
)
from kernbench.messages.operands import Operand
from kernbench.numerics.replay_extents import bounds


def names_tcm(command: PeCommand) -> bool:
    """Whether it works on an address in the TCM that the kernel has named: a send's source, a receive's copy."""
    if isinstance(command, MathCommand):
        return command.dst.by_address
    return isinstance(command, SendCommand) and command.src.by_address


def tcm_meets(a: PeCommand, b: PeCommand) -> bool:
    """Whether both touch the same bytes of the TCM, and one of them writes."""
    reads_a, writes_a = _operands(a)
    reads_b, writes_b = _operands(b)
    return _meet(writes_a, [*reads_b, *writes_b]) or _meet(reads_a, writes_b)


def _operands(command: PeCommand) -> tuple[list[Operand], list[Operand]]:
    """What is read, and what is written."""
    given: tuple[object, ...] = ()
    written: list[Operand] = []
    match command:
        case LoadCommand(dst=dst):
            written = [dst]
        case StoreCommand(src=src) | SendCommand(src=src):
            given = (src,)
        case AtomicCommand(src=src, compared=compared, dst=dst):
            given, written = (src, compared), [] if dst is None else [dst]
        case MathCommand(inputs=inputs, dst=dst):
            given, written = inputs, [dst]
        case DotCommand(a=a, b=b, acc=acc, dst=dst):
            given, written = (a, b, acc), [dst]
        case GemmComposite(a=a, b=b, epilogue=epilogue):
            given = (a, b, *(step.operand for step in epilogue))
        case MathComposite(inputs=inputs, epilogue=epilogue):
            given = (*inputs, *(step.operand for step in epilogue))
        case PrintCommand(parts=parts):
            given = parts
    return [each for each in given if isinstance(each, Operand)], written


def _meet(some: list[Operand], others: list[Operand]) -> bool:
    taken = [extent for each in others if each.space == "tcm" for extent in bounds(each)]
    return any(
        low < end and start < high
        for each in some
        if each.space == "tcm"
        for low, high in bounds(each)
        for start, end in taken
    )
