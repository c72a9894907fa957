"""``torch.float16`` and the like."""

from __future__ import annotations

from typing import ClassVar

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, DType


class DTypeNames:
    """The element types under PyTorch's names and under the machine's own."""

    __slots__ = ()

    float32: ClassVar[DType] = F32
    float16: ClassVar[DType] = F16
    bfloat16: ClassVar[DType] = BF16
    int32: ClassVar[DType] = I32
    int8: ClassVar[DType] = I8
    float8_e4m3fn: ClassVar[DType] = F8E4M3
    float8_e5m2: ClassVar[DType] = F8E5M2
    float: ClassVar[DType] = F32
    half: ClassVar[DType] = F16
    int: ClassVar[DType] = I32
    f32: ClassVar[DType] = F32
    f16: ClassVar[DType] = F16
    bf16: ClassVar[DType] = BF16
    i32: ClassVar[DType] = I32
    i8: ClassVar[DType] = I8
    f8e4m3: ClassVar[DType] = F8E4M3
    f8e5m2: ClassVar[DType] = F8E5M2
