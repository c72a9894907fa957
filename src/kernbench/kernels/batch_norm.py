"""Batch normalisation of the channels of images, and its gradients, in f32. Programs share the channels.

Images are (images, channels, places). A channel that fits in scratch is loaded once. A longer one is loaded again in
each pass, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kernbench.common.dtypes import F32
from kernbench.common.values import value
from kernbench.kernels.shares import RowPieces, blocks, share
from kernbench.kernels.tiling import NORM_BYTES, piece_of_row
from kernbench.kernels.view import View
from kernbench.kernels.windows import load_places, store_places
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_ImageRange = tuple[tuple[int, int], tuple[int, int]]
"""First and number of images, first and number of places"""


@value
class _ChannelRange:
    """Some channels of all images, in pieces of images and places."""

    first: int
    count: int
    pieces: tuple[_ImageRange, ...]

    def load(self, x: View, tl: TLContext) -> RowPieces:
        """Return the elements of each channel, in f32. A single piece is loaded here."""

        def load_piece(index: int, _count: int) -> Handle:
            images, places = self.pieces[index]
            return tl.cast(load_places(x, images, (self.first, self.count), places, False, tl), F32)

        return RowPieces.of([(index, 1) for index in range(len(self.pieces))], load_piece)

    def store(self, out: View, rows: RowPieces, tl: TLContext) -> None:
        """Store the elements of each channel."""
        for index, ((image, images), (place, places)) in enumerate(self.pieces):
            store_places(out, rows(index, 1), (image, self.first, place), (self.count, images, places), tl)

    def vector(self, parameter: View | None, tl: TLContext) -> Handle | None:
        """Load a number for each channel, in f32: (channels, 1)."""
        if parameter is None:
            return None
        numbers = parameter.tile((self.first,), (self.count,)).load(tl)
        return tl.reshape(tl.cast(numbers, F32), (self.count, 1))

    def store_vector(self, out: View | None, numbers: Handle, tl: TLContext) -> None:
        """Store a number for each channel."""
        if out is not None:
            out.tile((self.first,), (self.count,)).store(tl.reshape(numbers, (self.count,)), tl)


def _own_channels(x: View, tl: TLContext) -> Iterator[_ChannelRange]:
    """Yield this program's channels, in blocks that fit in scratch with all intermediate results."""
    images, channels, places = x.extents
    first, size = share(channels, tl)
    per_channel = images * places
    most = piece_of_row(per_channel, NORM_BYTES, tl)
    if most < per_channel:
        rows = [(image, block) for image in range(images) for block in blocks(places, most)]
        for channel in range(first, first + size):
            yield _ChannelRange(channel, 1, tuple([((image, 1), block) for image, block in rows]))
        return
    tcm = tl.site.tcm
    count = size if tcm is None else max(1, len(tcm) // (NORM_BYTES * per_channel))
    for channel, channels_of_block in blocks(size, max(1, min(count, size)), first):
        yield _ChannelRange(channel, channels_of_block, (((0, images), (0, places)),))


@value
class BatchNorm:
    """Normalisation by the mean and variance of each channel, or by running ones.

    ``momentum`` is the weight of a batch in the running statistics. ``trains``: the batch's statistics are used.
    """

    eps: float
    momentum: float
    trains: bool

    def run(
        self,
        out: View,
        saved_mean: View | None,
        saved_scale: View | None,
        running_mean: View | None,
        running_var: View | None,
        x: View,
        weight: View | None,
        bias: View | None,
        *,
        tl: TLContext,
    ) -> None:
        """Compute this program's channels. In training, also save the statistics and update the running ones.

        ``saved_scale`` gets 1 / standard deviation.
        """
        n = prod(x.extents) // x.extents[1]
        for channels in _own_channels(x, tl):
            rows = channels.load(x, tl)
            means, variances = channels.vector(running_mean, tl), channels.vector(running_var, tl)
            if self.trains:
                mean = rows.sum(tl) / float(n)
                centred = rows.map(lambda piece, mean: piece - mean, mean)
                variance = centred.map(lambda piece: piece * piece).sum(tl) / float(n)
                scale = tl.rsqrt(variance + self.eps)
                channels.store_vector(saved_mean, mean, tl)
                channels.store_vector(saved_scale, scale, tl)
                if means is not None:
                    channels.store_vector(running_mean, self._update(means, mean), tl)
                if variances is not None:
                    channels.store_vector(running_var, self._update(variances, variance * (n / max(n - 1, 1))), tl)
            else:
                assert means is not None, "without training, statistics are running ones"
                assert variances is not None, "without training, statistics are running ones"
                centred = rows.map(lambda piece, mean: piece - mean, means)
                scale = tl.rsqrt(variances + self.eps)
            factor, addend = channels.vector(weight, tl), channels.vector(bias, tl)
            normal = centred.map(lambda piece, scale: piece * scale, scale if factor is None else scale * factor)
            normal = normal if addend is None else normal.map(lambda piece, bias: piece + bias, addend)
            channels.store(out, normal, tl)

    def _update(self, running: Handle, batch: Handle) -> Handle:
        """Return running statistics after a batch."""
        return running * (1 - self.momentum) + batch * self.momentum

    def run_gradients(
        self,
        by_x: View | None,
        by_weight: View | None,
        by_bias: View | None,
        grad: View,
        x: View,
        weight: View | None,
        mean: View,
        scale: View,
        *,
        tl: TLContext,
    ) -> None:
        """Compute the gradients of this program's channels. ``scale``: 1 / standard deviation; running: the variance.

        A gradient whose view is None is left out.
        """
        n = prod(x.extents) // x.extents[1]
        for channels in _own_channels(x, tl):
            means, scales = channels.vector(mean, tl), channels.vector(scale, tl)
            assert means is not None, "statistics are tensors"
            assert scales is not None, "statistics are tensors"
            scales = scales if self.trains else tl.rsqrt(scales + self.eps)
            gradients = channels.load(grad, tl)
            normal = channels.load(x, tl).map(lambda piece, mean, scale: (piece - mean) * scale, means, scales)
            by_shift = gradients.sum(tl)
            by_factor = gradients.map(lambda piece, normal: piece * normal, normal).sum(tl)
            channels.store_vector(by_weight, by_factor, tl)
            channels.store_vector(by_bias, by_shift, tl)
            if by_x is None:
                continue
            if self.trains:
                shares = normal.map(lambda piece, dot: piece * dot, by_factor / float(n))
                gradients = gradients.map(lambda piece, mean, share: piece - mean - share, by_shift / float(n), shares)
            factor = channels.vector(weight, tl)
            step = scales if factor is None else scales * factor
            channels.store(by_x, gradients.map(lambda piece, step: piece * step, step), tl)
