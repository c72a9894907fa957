"""Meetings of ranks on the host: objects, host tensors and keys of stores, exchanged in no simulated time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import Store

from kernbench.common.values import state
from kernbench.frontends.torch.storage import current
from kernbench.runtime_api.ranks import HandedOn, RankGate


@state
class _Exchange:
    """One exchange: the value of each rank that has arrived, and the gate that opens for the last one."""

    gate: RankGate
    values: dict[int, Any]


class Meetings(HandedOn):
    """The exchanges and the stores of ranks that were spawned together.

    ``pes``: the name of the PEs that run collectives, for reports.
    """

    def __init__(self, pes: str) -> None:
        self._pes = pes
        self._exchanges: dict[tuple[str, int], _Exchange] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        self._stores: dict[str, RankStoreKeys] = {}
        self._messages: dict[tuple[str, int, int, int], HostMessages] = {}
        self._numbers: dict[tuple[int, int], KnownNumbers] = {}
        self._exchanged: Counter[str] = Counter()
        self._n_left = 0

    def in_rank(self, rank: int, n_ranks: int) -> object:
        """Return this object: all ranks share it."""
        return self

    def exchange(self, name: str, place: str, rank: int, ranks: Sequence[int], value: Any) -> list[Any]:
        """Wait for all ``ranks`` at a place, and return their values. Ranks come to a place in the same order.

        ``name``: the collective, for reports of waits.
        """
        number = self._counts[place, rank]
        self._counts[place, rank] += 1
        exchange = self._exchanges.get((place, number))
        if exchange is None:
            values: dict[int, Any] = {}
            gate = RankGate(lambda: _describe(name, ranks, values))
            exchange = self._exchanges[place, number] = _Exchange(gate, values)
            self._exchanged[name] += 1
        exchange.values[rank] = value
        if len(exchange.values) == len(ranks):
            del self._exchanges[place, number]
            exchange.gate.open()
        else:
            current().multiprocessing.pass_through(exchange.gate)
        return [exchange.values[other] for other in ranks]

    def leave(self) -> None:
        """Note that a rank has ended. The last one adds remarks on collectives to the report."""
        context = current()
        self._n_left += 1
        if self._n_left < context.multiprocessing.n_ranks:
            return
        place = "the tensors: same" if self._pes == "same" else self._pes
        context.remarks.append(f"collectives of {self._n_left} ranks: on the PEs of {place} (torch.comm)")
        if self._exchanged:
            counts = ", ".join(f"{count} {name}" for name, count in sorted(self._exchanged.items()))
            context.remarks.append(f"ranks exchanged on the host, in no simulated time: {counts}")

    def store(self, place: str) -> RankStore:
        """Return the store at an address or of a file, shared by all ranks."""
        return RankStore(self._stores.setdefault(place, RankStoreKeys(place)))

    def numbers(self, source: int, to: int) -> KnownNumbers:
        """Return the whole numbers that a rank sends to another in messages of the machine."""
        return self._numbers.setdefault((source, to), KnownNumbers())

    def messages(self, place: str, source: int, to: int, tag: int) -> HostMessages:
        """Return the host tensors on their way from one rank of a group to another."""
        key = (place, source, to, tag)
        return self._messages.setdefault(key, HostMessages(f"a message from rank {source} of the {place}"))


class KnownNumbers:
    """The values of messages from one rank to another, in a run without data: whole numbers that the sender knows."""

    def __init__(self) -> None:
        self._sent: deque[Tensor | None] = deque()
        self._receivers: deque[Callable[[Tensor], None]] = deque()

    def send(self, elements: Tensor | None) -> None:
        """Deliver the values of the next message; None if they are not known."""
        self._sent.append(elements)
        self._deliver()

    def receive(self, deliver: Callable[[Tensor], None]) -> None:
        """Pass the values of the next message to ``deliver``, when the sender has sent them."""
        self._receivers.append(deliver)
        self._deliver()

    def _deliver(self) -> None:
        while self._sent and self._receivers:
            elements, deliver = self._sent.popleft(), self._receivers.popleft()
            if elements is not None:
                deliver(elements)


class HostMessages:
    """Host tensors that a rank has sent and another has not received yet, in order. ``label`` describes a wait."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._sent: deque[Any] = deque()
        self._gate: RankGate | None = None

    def put(self, x: Any) -> None:
        """Send a tensor."""
        self._sent.append(x)
        if self._gate is not None:
            self._gate.open()
            self._gate = None

    def take(self) -> Any:
        """Wait for a tensor, and return it."""
        if not self._sent:
            self._gate = RankGate(lambda: self._label)
            current().multiprocessing.pass_through(self._gate)
        return self._sent.popleft()


def _describe(name: str, ranks: Sequence[int], values: dict[int, Any]) -> str:
    missing = [str(rank) for rank in ranks if rank not in values]
    return f"{name} on the host, which rank{'s' * (len(missing) > 1)} {', '.join(missing)} never joined"


def meetings() -> Meetings:
    """Return the meetings of this rank and the ranks spawned with it."""
    shared = current().rank_local.get(Meetings)
    assert shared is not None, "ranks inherit the meetings of their spawn"
    return shared


class RankStoreKeys:
    """The keys of a store, and the gates of ranks that wait for missing keys."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.values: dict[str, bytes] = {}
        self._gates: dict[str, RankGate] = {}

    def put(self, key: str, value: str | bytes) -> None:
        """Set a key, and let the ranks that wait for it continue."""
        self.values[key] = value.encode() if isinstance(value, str) else bytes(value)
        gate = self._gates.pop(key, None)
        if gate is not None:
            gate.open()

    def wait_for(self, key: str) -> bytes:
        """Wait, in simulated time, until a key is set, and return its value."""
        while key not in self.values:
            gate = self._gates.setdefault(key, RankGate(lambda: f"key {key!r} of the store {self.place}"))
            current().multiprocessing.pass_through(gate)
        return self.values[key]


class RankStore(Store):
    """A store of all ranks. A rank that waits for a key lets the others run; nothing waits in real time."""

    def __init__(self, keys: RankStoreKeys) -> None:
        super().__init__()
        self._keys = keys

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._keys.put(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a key, and return its value."""
        return self._keys.wait_for(key)

    def add(self, key: str, value: int) -> int:
        """Add to the number of a key, which begins at 0, and return the sum."""
        total = int(self._keys.values.get(key, b"0")) + value
        self._keys.put(key, str(total))
        return total

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Set a key if it has the expected value, or if it is missing and none is expected. Return its value."""
        present = self._keys.values.get(key)
        if present == expected_value.encode() or (present is None and not expected_value):
            self._keys.put(key, desired_value)
        return self._keys.values.get(key, expected_value.encode())

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys are set."""
        return all(key in self._keys.values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        """Wait for all keys. ``timeout`` has no effect: a key that is never set is a deadlock, which is reported."""
        for key in keys:
            self._keys.wait_for(key)

    def delete_key(self, key: str) -> bool:
        """Delete a key, and return True if it was set."""
        return self._keys.values.pop(key, None) is not None

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Wait for all keys, and return their values."""
        return [self._keys.wait_for(key) for key in keys]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._keys.values)

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: waits take no real time."""
