"""``torch.ahbm``, PyTorch's device module; also ``torch.cuda`` in a program that calls the machine "cuda"."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.types import Device

from kernbench.common.errors import InputError
from kernbench.common.units import ps_to_ns
from kernbench.engine.requests import RequestHandle
from kernbench.frontends.gpu import DeviceProperties, device_properties
from kernbench.frontends.torch.generators import DEFAULT
from kernbench.frontends.torch.graphs import (  # noqa: F401 - names of this module
    CUDAGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from kernbench.frontends.torch.storage import current, pool_of
from kernbench.frontends.torch.tensor import device_of_sip
from kernbench.runtime_api.context import current_context


def is_available() -> bool:
    """Return True: the machine is available."""
    return True


def is_initialized() -> bool:
    """Return True: the machine is initialised."""
    return True


def init() -> None:
    """Do nothing: the machine is initialised."""


def device_count() -> int:
    """Return the number of SIPs of the run."""
    return len(current().devices.selected)


def current_device() -> int:
    """Return the SIP on which new tensors are placed."""
    return current().devices.current


def set_device(device: Device) -> None:
    """Make a SIP the current one."""
    current().ahbm.set_device(_index(device))


def _index(device: object = None) -> int:
    """Return the SIP that a number, a name or a device stands for; the current SIP for anything else."""
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    return int(index) if isinstance(index, int) and index >= 0 else current_device()


class device:  # noqa: N801 - as in torch.cuda
    """A context manager that makes a SIP the current one, as in ``with torch.cuda.device(1):``."""

    def __init__(self, device: Device) -> None:
        self.idx, self.prev_idx = _index(device), -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


class device_of(device):  # noqa: N801 - as in torch.cuda
    """A context manager that makes the SIP of a tensor the current one. A host tensor changes nothing."""

    def __init__(self, obj: Tensor) -> None:
        super().__init__(obj.get_device())


# properties


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return the properties of a SIP."""
    return device_properties(current(), _index(device))


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return the compute capability (major, minor) that ``--set triton.capability`` configures."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_device_name(device: Device = None) -> str:
    """Return the name of the machine."""
    return get_device_properties(device).name


def get_arch_list() -> list[str]:
    """Return a list with the only architecture, that of the compute capability."""
    major, minor = get_device_capability()
    return [f"sm_{major}{minor}"]


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001
    """Return True: the machine has bf16."""
    return True


def is_tf32_supported() -> bool:
    """Return False: the machine has no tf32."""
    return False


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Return whether kernels on one SIP reach the memory of another: only if both are the same SIP."""
    return _index(device) == _index(peer_device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free and the total HBM of a SIP, in bytes."""
    total = get_device_properties(device).total_memory
    return total - memory_allocated(device), total


def memory_reserved(device: Device = None) -> int:
    """Return the bytes of HBM that tensors use, plus those retained for reuse."""
    return current().bytes_in_use(_index(device))


max_memory_reserved = memory_reserved
"""Peak of ``memory_reserved``. It equals the current value, because reserved memory is retained."""


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors use, each rounded up to the block size of PyTorch's allocators."""
    return pool_of(current()).allocated.get(_index(device), 0)


def max_memory_allocated(device: Device = None) -> int:
    """Return the peak of ``memory_allocated``."""
    return pool_of(current()).peak.get(_index(device), 0)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset the peak of ``memory_allocated`` to its current value."""
    pool = pool_of(current())
    pool.peak[_index(device)] = pool.allocated.get(_index(device), 0)


def empty_cache() -> None:
    """Do nothing: memory of dropped tensors is reused, and freed when an allocation would not fit."""


def ipc_collect() -> None:
    """Do nothing: the program is a single process."""


# Streams and events: launches of a program run in one order.


class Stream:
    """A stream. All launches of a program run in one order, whatever their stream."""

    cuda_stream = stream_id = priority = 0

    def __init__(self, device: Device = None, priority: int = 0, **_: object) -> None:
        self.device_index = _index(device)

    @property
    def device(self) -> torch.device:
        """Return the SIP of the stream as a device."""
        return device_of_sip(self.device_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.device_index == other.device_index

    def __hash__(self) -> int:
        return hash(self.device_index)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """Wait for all work that this rank has started."""
        synchronize()

    def query(self) -> bool:
        """Return whether the work is complete. If it is not, time advances to the next completion."""
        return _poll(current().queue.last(self.device_index))

    def is_capturing(self) -> bool:
        """Return True while launches are captured."""
        return is_current_stream_capturing()

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing: launches run in the order of their calls."""

    def wait_event(self, event: Event) -> None:
        """Do nothing: launches run in the order of their calls."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record the current time in an event and return it."""
        recorded = event or Event(enable_timing=True)
        recorded.record(self)
        return recorded


class Event:
    """A time of the simulation: when the work before the event is complete."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._at_ns: float | None = None
        self._after: RequestHandle | None = None

    @property
    def is_recorded(self) -> bool:
        """Return whether the event has been recorded."""
        return self._at_ns is not None

    def record(self, stream: Stream | None = None) -> None:
        """Record the time at which all launches so far are complete."""
        context = current()
        self._at_ns = context.engine.now
        self._after = context.queue.last(current_device() if stream is None else stream.device_index)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the simulated ms from this event to ``end_event``.

        Raises InputError if one is not recorded, or if its work is not complete.
        """
        return (end_event._time_ns() - self._time_ns()) * 1e-6

    def _time_ns(self) -> float:
        if self._at_ns is None:
            raise InputError("elapsed_time: both events have to be recorded first")
        if self._after is None:
            return self._at_ns
        if not self._after.done:
            raise InputError(
                "elapsed_time: the work before an event is not complete; call event.synchronize() or "
                "torch.cuda.synchronize() first"
            )
        return max(self._at_ns, ps_to_ns(self._after.ended_ps))

    def wait(self, stream: object = None) -> None:
        """Do nothing: launches of a SIP run in one order."""

    def query(self) -> bool:
        """Return whether the work before the event is complete. If it is not, time advances to the next completion."""
        return _poll(self._after)

    def synchronize(self) -> None:
        """Wait until the work before the event is complete."""
        if self._after is not None:
            current().queue.wait_for(self._after)


def _poll(launch: RequestHandle | None) -> bool:
    """Return whether a launch is complete. If it is not, let time advance to the next completion."""
    is_complete = launch is None or launch.done
    if not is_complete:
        current().requests.give_way()
    return is_complete


def synchronize(device: object = None) -> None:  # noqa: ARG001 - it waits for all SIPs
    """Wait for all work that this rank has started."""
    current().accelerator.synchronize()


def current_stream(device: Device = None) -> Stream:
    """Return a SIP's only stream."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Stream) -> None:
    """Make the SIP of a stream the current one. A SIP has only one stream."""
    set_device(stream.device_index)


STREAMS_NOTE = (
    "streams of the program are names: launches of a rank run in the program's order, beside collectives, and wait "
    "only for what uses their tensors"
)
"""What a report of ranks says of a program that uses streams"""


class StreamContext(device):
    """A context manager that makes the SIP of ``stream`` the current one. A SIP has only one stream."""

    def __init__(self, stream: Stream | None) -> None:
        super().__init__(current_device() if stream is None else stream.device_index)
        self.stream = stream
        context = None if stream is None else current_context()
        if context is not None and context.n_ranks > 1 and STREAMS_NOTE not in context.remarks:
            context.remarks.append(STREAMS_NOTE)


def stream(stream: Stream | None) -> StreamContext:
    """Return a context manager that makes the SIP of ``stream`` the current one."""
    return StreamContext(stream)


# Random numbers come from the host's generator.


def manual_seed(seed: int) -> None:
    """Seed the generator of random numbers that all devices share."""
    DEFAULT.manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed() -> int:
    """Return the seed of the generator."""
    return DEFAULT.initial_seed()


def get_rng_state(device: object = None) -> Tensor:  # noqa: ARG001
    """Return the state of the generator."""
    return DEFAULT.get_state()


def set_rng_state(new_state: Tensor, device: object = None) -> None:  # noqa: ARG001
    """Set the state of the generator."""
    DEFAULT.set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """Return one state per device. All are equal, because all devices share one generator."""
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Set the state of the generator to each of ``new_states``, so the last state remains."""
    for state in new_states:
        set_rng_state(state)


# Functions that PyTorch itself calls on a device module.


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast may use."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    """Return False, so that PyTorch seeds the device's generator."""
    return False
