"""``torch.ahbm``, and ``torch.cuda`` in a program that means the machine by it: what a module of a device has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernbench.common.errors import InputError
from kernbench.frontends.gpu import DeviceProperties, device_properties
from kernbench.frontends.torch.generators import DEFAULT
from kernbench.frontends.torch.pool import pool_of
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import device_of_sip


def is_available() -> bool:
    """Yes."""
    return True


def is_initialized() -> bool:
    """Yes."""
    return True


def init() -> None:
    """Nothing is left to do."""


def device_count() -> int:
    """The SIPs of the run."""
    return len(current().devices.selected)


def current_device() -> int:
    """The SIP that tensors are made on."""
    return current().devices.current


def set_device(device: Any) -> None:
    """Make a SIP the current one."""
    current().ahbm.set_device(_index(device))


def _index(device: Any = None) -> int:
    """Return the SIP that PyTorch means by a number, a name or a device; the current one by all else."""
    named = torch.device(device) if isinstance(device, str) else device
    if isinstance(named, torch.device):
        named = named.index
    return int(named) if isinstance(named, int) and named >= 0 else current_device()


class device:  # noqa: N801 - as in torch.cuda
    """``with torch.cuda.device(1):`` that SIP is the current one inside."""

    def __init__(self, device: Any) -> None:
        self.idx, self.prev_idx = _index(device), -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


class device_of(device):  # noqa: N801 - as in torch.cuda
    """The same for the SIP of a tensor; of one of the host nothing changes."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device())


# figures


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return the figures of a SIP."""
    return device_properties(current(), _index(device))


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability that --set triton.capability says."""
    found = get_device_properties(device)
    return found.major, found.minor


def get_device_name(device: Any = None) -> str:
    """Return the machine's name."""
    return get_device_properties(device).name


def get_arch_list() -> list[str]:
    """Return the one architecture that there is."""
    major, minor = get_device_capability()
    return [f"sm_{major}{minor}"]


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001
    """Yes."""
    return True


def is_tf32_supported() -> bool:
    """No."""
    return False


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Tell whether kernels on one SIP reach the memory of another: only their own."""
    return _index(device) == _index(peer_device)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the HBM of a SIP that is free, and all of it, in bytes."""
    total = get_device_properties(device).total_memory
    return total - memory_allocated(device), total


def memory_reserved(device: Any = None) -> int:
    """Return the bytes of HBM that have a tensor, or had one and are kept for the next."""
    return current().bytes_in_use(_index(device))


max_memory_reserved = memory_reserved
"""What was taken from the machine is kept, so that there never was more."""


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that tensors have, in the blocks that PyTorch's allocators count in."""
    return pool_of(current()).allocated.get(_index(device), 0)


def max_memory_allocated(device: Any = None) -> int:
    """Return the most that they had at a time."""
    return pool_of(current()).peak.get(_index(device), 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Forget how much tensors had: from now on ``max_memory_allocated`` begins with what they have."""
    pool = pool_of(current())
    pool.peak[_index(device)] = pool.allocated.get(_index(device), 0)


def empty_cache() -> None:
    """Nothing: what Python has dropped is used again, and freed when there is no room."""


def ipc_collect() -> None:
    """Nothing: there is one process."""


# streams and events: launches of a program are in one order


class Stream:
    """A stream; all of a program's launches are in one order, whatever the stream."""

    cuda_stream = stream_id = priority = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: object) -> None:
        self.device_index = _index(device)

    @property
    def device(self) -> Any:
        """Its SIP."""
        return device_of_sip(self.device_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.device_index == other.device_index

    def __hash__(self) -> int:
        return hash(self.device_index)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """Wait for what has been started."""
        synchronize()

    def query(self) -> bool:
        """Tell whether all is done: what a program has launched is, once the launch returns."""
        return True

    def is_capturing(self) -> bool:
        """No: there are no graphs."""
        return False

    def wait_stream(self, stream: Stream) -> None:
        """Nothing: what was launched before is before."""

    def wait_event(self, event: Event) -> None:
        """Nothing, for the same reason."""

    def record_event(self, event: Event | None = None) -> Event:
        """Note the time in an event."""
        noted = event or Event(enable_timing=True)
        noted.record(self)
        return noted


class Event:
    """A point of simulated time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._at_ns: float | None = None

    @property
    def is_recorded(self) -> bool:
        """True once it has a time."""
        return self._at_ns is not None

    def record(self, stream: object = None) -> None:
        """Note the time at which all that was started is done."""
        synchronize()
        self._at_ns = current().engine.now

    def elapsed_time(self, end_event: Event) -> float:
        """Return the simulated milliseconds from here to another event."""
        if self._at_ns is None or end_event._at_ns is None:
            raise InputError("elapsed_time: both events have to be recorded before")
        return (end_event._at_ns - self._at_ns) * 1e-6

    def wait(self, stream: object = None) -> None:
        """Nothing: launches are in one order."""

    def query(self) -> bool:
        """Tell whether what it stands for is done."""
        return True

    def synchronize(self) -> None:
        """Nothing is left to wait for."""


def synchronize(device: object = None) -> None:  # noqa: ARG001 - all of them
    """Wait for what this rank has started."""
    current().accelerator.synchronize()


def current_stream(device: object = None) -> Stream:
    """The only one of a SIP."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Stream) -> None:
    """Make the SIP of a stream the current one: it has no other stream."""
    set_device(stream.device_index)


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Inside, what is launched is in ``stream``: there is only one, of the stream's SIP."""
    if stream is None:
        yield
        return
    with device(stream.device_index):
        yield


StreamContext = stream


def is_current_stream_capturing() -> bool:
    """No: there are no graphs."""
    return False


# random numbers are those of the host's generator


def manual_seed(seed: int) -> None:
    """Seed the generator."""
    DEFAULT.manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed() -> int:
    """Return its seed."""
    return DEFAULT.initial_seed()


def get_rng_state(device: object = None) -> Any:  # noqa: ARG001
    """Return its state."""
    return DEFAULT.get_state()


def set_rng_state(new_state: Any, device: object = None) -> None:  # noqa: ARG001
    """Give it a state."""
    DEFAULT.set_state(new_state)


def get_rng_state_all() -> list[Any]:
    """Return the state for each device: it is one generator."""
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[Any]) -> None:
    """Give it a state."""
    for each in new_states:
        set_rng_state(each)


# what PyTorch itself asks a device's module


def get_amp_supported_dtype() -> list[Any]:
    """The types that autocast may take."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    """Tell PyTorch, before it seeds, that it may."""
    return False
