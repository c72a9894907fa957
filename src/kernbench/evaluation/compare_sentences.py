"""A comparison of results in sentences: the headline, the differences, the latency, the verdicts and the stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.evaluation.compare_results import (
    MAIN,
    NOTHING,
    RUN,
    SEEN,
    Change,
    ColumnPair,
    ResultComparison,
    ns_text,
)
from kernbench.observe.path_resources import join_words

MOST_LISTED, MOST_IN_HEADLINE = 6, 3
"""Most items of a list, and most stages of the headline"""


def verdict(compared: ResultComparison) -> tuple[str, ...]:
    """Return the comparison in sentences.

    The main change and its cause are first. Differences, unused differences, and changes of latency, verdict and
    stages follow.
    """
    return (_say_headline(compared), *compared.left_out, *compared.unsaid, *_say_parts(compared))


def _say_headline(comparison: ResultComparison) -> str:
    time, count = comparison.time, f" over {len(comparison.pairs)} points" if len(comparison.pairs) > 1 else ""
    groups = [group for group in comparison.groups if NOTHING not in group.bounds]
    which = [str(group) if len(comparison.pairs) == 1 else f"{group.pairs} {group}" for group in groups[:MOST_LISTED]]
    why = [", ".join(which)] if which else []
    if not time.ns:
        sentence = f"B takes as long as A{count}"
        if not comparison.differing:
            why = ["no parameter differs"]
        elif all(difference.unused for difference in comparison.differing):
            why = [f"what differs, {join_words(comparison.unused)}, is not used by this bench"]
        elif not any(pair.time.ns for pair in comparison.pairs):
            why = ["no difference is on the critical path", *why]
    else:
        sentence = f"B takes {ns_text(abs(time.ns))} ns {'more' if time.ns > 0 else 'less'} ({time.share_text}){count}"
        why += [", ".join(map(str, comparison.moves[:MOST_IN_HEADLINE]))] if comparison.moves else []
    return f"{sentence}: {'; '.join(why)}" if why else sentence


def _say_parts(comparison: ResultComparison) -> Iterator[str]:
    differences = [
        str(difference)
        for difference in comparison.differing
        if not (difference.of_energy or (comparison.machines and difference.of_machine))
    ]
    if comparison.machines:
        differences += [
            comparison.machines,
            f"{sum(difference.of_machine for difference in comparison.differing)} parameters of the machines in all",
        ]
    yield "what differs: " + ("; ".join(differences) or "no parameter")
    energies = [str(difference) for difference in comparison.differing if difference.of_energy]
    if energies:
        more = f"; {len(energies) - MOST_LISTED} more" if len(energies) > MOST_LISTED else ""
        yield f"energies that differ: {'; '.join(energies[:MOST_LISTED])}{more}"
    if comparison.unused:
        yield f"not used by this bench: {', '.join(comparison.unused)}"
    yield "; ".join([f"latency: {RUN} {_say_change(comparison.time)}", *_say_launch(comparison)])
    if comparison.energy:
        yield _say_energy(comparison.energy)
    columns = _say_columns([pair.columns for pair in comparison.pairs])
    if columns:
        yield f"columns: {columns}"
    for group in comparison.groups:
        if NOTHING not in group.bounds:
            points = f" at {group.pairs} point{'s' * (group.pairs > 1)}" if len(comparison.pairs) > 1 else ""
            yield f"verdict: {group.of}{points}: {group}; bound {group.bound.share_text}, time {group.time.share_text}"
    least_ns = SEEN * abs(comparison.stages[0].ns) if comparison.stages else 0.0
    shown = [move for move in comparison.moves if abs(move.stages[0].ns) >= least_ns][:MOST_LISTED]
    if shown:
        rest = round(comparison.time.ns - sum(move.ns for move in shown), 3)
        remainder = [f"anything else {ns_text(rest, '+')}"] if rest else []
        yield f"stages, in ns: {'; '.join([*map(str, shown), *remainder])}"


def _say_energy(energy: Sequence[Change]) -> str:
    """Return the change of the dynamic energy, and those of its groups, in µJ."""
    total, *groups = energy
    moved = ", ".join(f"{change.name} {change.ns * 1e-6:+,.3g}".replace("-", "−") for change in groups[:MOST_LISTED])
    both = f"{total.a_ns * 1e-6:,.5g} → {total.b_ns * 1e-6:,.5g} µJ ({total.share_text})"
    return f"{total.name}: {both}{f': {moved}' if moved else ''}"


def _say_launch(comparison: ResultComparison) -> Iterator[str]:
    names = dict.fromkeys(name for pair in comparison.pairs for name in pair.launches if name)
    changed = sum(not pair.same_launch for pair in comparison.pairs)
    if changed and len(comparison.pairs) == 1:
        launch = comparison.launch
        yield f"{MAIN} {' in A, '.join(names)} in B: {ns_text(launch.a_ns)} and {ns_text(launch.b_ns)} ns"
    elif changed:
        yield f"{MAIN}: at {changed} points B has another"
    elif comparison.launch.a_ns:
        yield f"{' '.join([MAIN, *(names if len(names) == 1 else ())])} {_say_change(comparison.launch)}"


def _say_change(change: Change) -> str:
    return f"{ns_text(change.a_ns)} → {ns_text(change.b_ns)} ns ({change.share_text})"


def _say_columns(pairs: Sequence[Sequence[ColumnPair]]) -> str:
    """Return a sentence about the changes of all columns over all pairs; empty without columns."""
    return "; ".join(_say_column(column) for column in zip(*pairs, strict=True))


def _say_column(numbers: Sequence[ColumnPair]) -> str:
    """Return the change of a column: its numbers for one pair, else the range of its changes."""
    shares = [pair.share for pair in numbers if pair.share is not None]
    change = "no change to compare"
    if shares:
        least, most = (f"{share:+.1%}" for share in (min(shares), max(shares)))
        change = "as before" if not any(shares) else least if least == most else f"{least} to {most}"
    return f"{numbers[0]} ({change})" if len(numbers) == 1 else f"{numbers[0].name} {change}"
