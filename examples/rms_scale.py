"""A kernel author's first file: x / rms(x) for every row, on the eight PEs of a cube.

kernbench run --bench examples/rms_scale.py --verify-data
"""

import numpy as np

from kernbench.policy.placement.dp import DPPolicy

ROWS, WIDTH = 64, 512


def rms_scale(x_ptr, y_ptr, rows, width, *, tl):
    """Each PE takes the rows of its own shard; shards are contiguous in the order of the PEs."""
    mine = rows // tl.num_programs(0)
    first = tl.program_id(0) * mine * width * tl.itemsize("f32")
    for row in range(mine):
        offset = first + row * width * tl.itemsize("f32")
        x = tl.load(x_ptr + offset, (1, width), "f32")
        mean_square = tl.sum(x * x, axis=1, keepdims=True) / width
        tl.store(y_ptr + offset, x * tl.rsqrt(mean_square))


def run(torch):
    """The host program."""
    data = np.random.default_rng(0).standard_normal((ROWS, WIDTH), dtype=np.float32)
    by_rows = DPPolicy(pe="row_wise", num_cubes=1)
    x = torch.empty(ROWS, WIDTH, dtype="f32", dp=by_rows, name="x").copy_(data)
    y = torch.empty(ROWS, WIDTH, dtype="f32", dp=by_rows, name="y")
    torch.launch("rms_scale", rms_scale, x, y, ROWS, WIDTH)
    torch.testing.assert_close(y, data / np.sqrt((data**2).mean(axis=1, keepdims=True)), rtol=1e-5, atol=1e-6)
