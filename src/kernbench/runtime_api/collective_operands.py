"""The operands of collectives: their elements in the memory of this rank, and the checks of their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.collective_operations import Member
from kernbench.runtime_api.collective_tables import Stretch
from kernbench.runtime_api.tensor import Tensor


class TensorPart:
    """Some elements in the memory of ``tensor``, as an operand of collectives: a view without a copy.

    ``offset``: of the first element, in bytes. ``size``: the number of elements, by default all that follow.
    ``dtype``: their type, by default that of the tensor. The tensor must store its elements in order, each once. On
    other ranks the elements may be elsewhere.
    """

    __slots__ = ("dtype", "offset", "size", "tensor")

    def __init__(self, tensor: Tensor, offset: int = 0, size: int | None = None, dtype: object = None) -> None:
        self.tensor, self.offset = tensor, offset
        self.dtype = tensor.dtype if dtype is None else dtype_of(dtype)
        item = self.dtype.itemsize
        self.size = (tensor.nbytes - offset) // item if size is None else size
        if offset < 0 or offset % item or self.size < 0 or offset + self.size * item > tensor.nbytes:
            raise InputError(
                f"part of {tensor.name!r}: {self.size} elements of {self.dtype} at byte {offset}; the tensor has "
                f"{tensor.nbytes} bytes, and an element begins at a multiple of its {item} bytes"
            )


Operand: TypeAlias = Tensor | TensorPart
"""What a collective reads or writes"""


def find_stretch(rank: int, operand: object) -> Stretch:
    """Return the elements of an operand of ``rank``. Raises InputError for freed tensors and those of other SIPs."""
    tensor = operand.tensor if isinstance(operand, TensorPart) else operand
    if not isinstance(tensor, Tensor):
        raise InputError(f"a collective takes tensors of the machine, not a {type(tensor).__name__}")
    if not tensor.is_live:
        raise InputError(f"tensor {tensor.name!r} has been freed")
    if tensor.sip != rank:
        raise InputError(
            f"tensor {tensor.name!r} is on sip{tensor.sip}, but rank {rank} is SIP {rank}; "
            f"call torch.ahbm.set_device(rank) before making tensors"
        )
    if isinstance(operand, TensorPart):
        return Stretch(tensor.layout, operand.offset, operand.size, operand.dtype, is_whole=False)
    return Stretch.whole(tensor.layout)


def find_blocks(name: str, member: Member, tensors: Sequence[Operand] | Operand) -> list[Stretch]:
    """Return the elements of a list with a tensor for each rank, or of one tensor with a block for each."""
    if isinstance(tensors, Tensor | TensorPart):
        return [find_stretch(member.rank, tensors)]
    if len(tensors) != member.size:
        raise InputError(f"{name}: a list of {len(tensors)} tensors for {member.size} ranks")
    return [find_stretch(member.rank, tensor) for tensor in tensors]


def find_coalesced(name: str, member: Member, tensors: Sequence[Operand]) -> list[Stretch]:
    """Return the elements of the tensors of one coalesced collective, which have one dtype."""
    stretches = [find_stretch(member.rank, tensor) for tensor in tensors]
    if not stretches:
        raise InputError(f"{name}: an empty list of tensors")
    check_one_dtype(name, stretches)
    return stretches


def check_apart(name: str, outputs: Sequence[Stretch]) -> None:
    """Raise InputError if two outputs overlap: the later block would overwrite the other. Inputs may repeat."""
    in_order = sorted(range(len(outputs)), key=lambda at: outputs[at].va)
    for before, after in pairwise(in_order):
        end = outputs[before].va + outputs[before].nbytes
        if outputs[after].va < end:
            first, later = sorted((before, after))
            are = "one tensor" if outputs[first].va == outputs[later].va else "parts that overlap, of one tensor"
            raise InputError(
                f"{name}: outputs {first} and {later} are {are}, {outputs[first].layout.name!r}, which cannot hold the "
                f"blocks of two ranks; give each block a tensor of its own"
            )


def check_one_dtype(name: str, stretches: Sequence[Stretch]) -> None:
    """Raise InputError if the tensors of a collective have several dtypes."""
    dtypes = sorted({stretch.dtype.name for stretch in stretches})
    if len(dtypes) > 1:
        raise InputError(f"{name}: tensors of {', '.join(dtypes)}; all tensors of a collective have one dtype")


def has_blocks_of_any_size(name: str, lists: Sequence[Sequence[Stretch]], n_ranks: int) -> bool:
    """Return True for an all-to-all of lists, and for an all-gather of tensors of different sizes."""
    if name == "all_to_all":
        return len(lists[0]) == len(lists[1]) == n_ranks
    return name == "all_gather" and len({stretch.size for stretch in lists[1]}) > 1


def check_fit(name: str, lists: Sequence[Sequence[Stretch]], n_ranks: int) -> None:
    """Raise InputError unless inputs and outputs have the sizes of a collective with a block for each rank."""
    sizes = [sum(stretch.size for stretch in stretches) for stretches in lists]
    even = all(len({stretch.size for stretch in stretches}) <= 1 for stretches in lists)
    one_dtype = len({stretch.dtype for stretches in lists for stretch in stretches}) == 1
    if sizes != _fit_sizes(name, sizes, n_ranks) or not one_dtype or not even:
        described = " and ".join(f"{'input' if at == 0 else 'output'} of {size}" for at, size in enumerate(sizes))
        raise InputError(f"{name}: {described} elements do not fit each other for {n_ranks} ranks")


def split_rows(name: str, member: Member, side: str, operand: Operand, sizes: Sequence[int] | None) -> list[Stretch]:
    """Return the blocks of a tensor by its split sizes, which are equal by default. Raises InputError for others."""
    stretch = find_stretch(member.rank, operand)
    rows = operand.shape[0] if isinstance(operand, Tensor) and operand.shape else stretch.size
    if sizes is None:
        sizes = [rows // member.size] * member.size
    counts = [whole_number(size) for size in sizes]
    if len(sizes) != member.size or any(count is None or count < 0 for count in counts) or sum(sizes) != rows:
        raise InputError(
            f"{name}: {side} splits {list(sizes)} of {rows} rows: give {member.size} whole numbers with this sum"
        )
    in_row = stretch.size // rows if rows else 0
    return stretch.split([size * in_row for size in sizes])


def _fit_sizes(name: str, sizes: Sequence[int], world_size: int) -> list[int]:
    """Return the required sizes of input and output, computed from the smaller of the two."""
    input_size, output_size = sizes
    if name.startswith("all_gather"):
        return [input_size, input_size * world_size]
    if name.startswith("reduce_scatter"):
        return [output_size * world_size, output_size]
    return [input_size, input_size if input_size % world_size == 0 else -1]
