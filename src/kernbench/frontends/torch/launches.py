"""Launches that carry out PyTorch operators: programs of ``tl`` on the PEs of a SIP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field

import torch
from torch import Tensor

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import state
from kernbench.frontends.placed import pes_for
from kernbench.frontends.torch.modules import (
    ProgramPlace,
    call_from,
    current_module,
    is_made_by_module,
    program_place,
    traced_call,
)
from kernbench.frontends.torch.storage import current, machine_type
from kernbench.frontends.torch.tensor import on_machine, sip_of, storage_of
from kernbench.kernels.tiling import collapse
from kernbench.kernels.view import View
from kernbench.messages.requests import KernelRef, PeCoord
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.launch import Alike
from kernbench.runtime_api.operators import OperatorCall
from kernbench.runtime_api.requests import Work
from kernbench.triton_emu.tl_context import TLContext


@state
class LoadingWorks:
    """The collectives of a rank's initialisation whose ends the program waits for, such as scatters of weights."""

    works: list[Work] = field(default_factory=list)

    @staticmethod
    def of(context: AnyContext) -> LoadingWorks:
        """Return those of the current rank."""
        own = context.rank_local.get(LoadingWorks)
        if own is None:
            context.rank_local.put(own := LoadingWorks())
        return own


def measure(name: str, *, loads: bool = False) -> AbstractContextManager[None]:
    """Attribute launches and time inside the ``with`` block to operator ``name``.

    The first operator that neither loads nor creates a module ends the initialisation phase.
    """
    context = current()
    tallies = context.operators
    if tallies.is_loading and not loads and not tallies.is_inside and not is_made_by_module():
        context.queue.wait()
        for work in LoadingWorks.of(context).works:
            work.wait()
        if tallies.is_loading:  # no other rank has computed meanwhile
            tallies.end_loading(" ".join(filter(None, (current_module(), name, str(program_place() or "")))))
    call = traced_call()
    return tallies.measure(OperatorCall(name, current_module(), () if call is None else call.covers))


def refuse_graph(name: str) -> None:
    """Raise InputError if a program requests the gradient of ``name``'s backward, which is a single kernel."""
    if torch.is_grad_enabled():
        raise InputError(
            f"backward of {name}: there is no second derivative (create_graph=True); use other operators instead"
        )


DeviceProgram = Callable[..., None]
"""``program(*addresses, tl=tl)``: receives the address of the first element of each tensor of the launch."""


def dtype_of(x: Tensor) -> DType:
    """Return the machine's type of a tensor's elements."""
    return machine_type(x.dtype)


def view_of(x: Tensor) -> View:
    """Return the layout of a tensor."""
    return View(0, tuple(x.shape), tuple(x.stride()), dtype_of(x))


def merged_views(tensors: Sequence[Tensor]) -> list[View]:
    """Return the layout of each of ``tensors``, which have one shape, along their `collapse`d axes."""
    shape, strides = collapse(tensors[0].shape, [x.stride() for x in tensors])
    return [View(0, shape, steps, dtype_of(x)) for steps, x in zip(strides, tensors, strict=True)]


def launch(
    name: str,
    program: DeviceProgram,
    outs: Sequence[Tensor],
    inputs: Sequence[Tensor] = (),
    work_bytes: int | None = None,
) -> None:
    """Run ``program`` once on each PE of the launch. It gets the addresses of ``outs``, then of ``inputs``.

    ``work_bytes`` determines the number of PEs; the default is the size of the largest tensor.
    """
    context, tensors = current(), (*outs, *inputs)
    sip = sip_of(tensors[0])
    nbytes = max(x.numel() * x.element_size() for x in tensors) if work_bytes is None else work_bytes
    launch_on(name, pes_for(context, sip, nbytes), program, outs, inputs)


class _LaunchedProgram:
    """The function of a launch. Logs retain this object, so it drops the program and its tensors after the launch."""

    def __init__(self, program: DeviceProgram, offsets: Sequence[int], place: ProgramPlace | None) -> None:
        self.program: DeviceProgram | None = program
        self._offsets = offsets
        self._call = None if place is None else call_from(place)

    def release(self) -> None:
        """Drop the program: the launch has ended."""
        self.program = None

    def __call__(self, *addresses: int, tl: TLContext) -> None:
        """Run the program with the addresses of first elements, attributed to the line of the user's program."""
        assert self.program is not None, "a launch that runs has not ended"
        firsts = [address + offset for address, offset in zip(addresses, self._offsets, strict=True)]
        if self._call is None:
            self.program(*firsts, tl=tl)
        else:
            self._call(self.program, firsts, tl)


def launch_on(
    name: str, pes: Sequence[PeCoord], program: DeviceProgram, outs: Sequence[Tensor], inputs: Sequence[Tensor] = ()
) -> None:
    """Run ``program`` once on each of ``pes``."""
    if traced_call() is not None:
        current().compiled.own += 1
    context, places = current(), [on_machine(x).place() for x in (*outs, *inputs)]
    offsets = [offset for _, offset in places]

    place = program_place()
    work = _LaunchedProgram(program, offsets, place)
    where = " ".join(filter(None, (current_module(), name, "" if place is None else str(place))))
    kernel = KernelRef(name=name, function=work, file=None if place is None else place.file)
    alike = Alike((program, offsets), (*outs, *inputs)) if context.needs_kinds else None
    tensors, is_captured = [tensor for tensor, _ in places], context.queue.is_capturing
    written = [storage_of(out).tensor for out in outs]

    def note_start(started: Work) -> None:
        if not context.has_data:
            for tensor in written:
                context.known_values.forget(tensor)
        if not is_captured:
            started.on_end(work.release)

    try:
        context.launch_on(
            where,
            pes,
            kernel,
            *tensors,
            in_order=True,
            alike=alike,
            called_at="" if place is None else str(place),
            on_start=note_start,
            written=written,
        )
    except BaseException:
        work.release()
        raise
