"""All-reduce round a ring in both directions: every tile goes half the way east and half the way west.

cd examples; kernbench run --bench my_allreduce.py --verify-data
"""

import numpy as np

from kernbench.policy.placement.dp import DPPolicy

RANKS, N = 8, 512


def kernel_args(*, n_elem, world_size, dtype="f32", **_):
    """Return the arguments of the kernel behind its tensor; a configuration has more than it needs."""
    return n_elem, world_size, dtype


def kernel(t_ptr, n_elem, world_size, dtype, *, tl):
    """Reduce each rank's elements in place; they fit a slot. Step s adds the tiles of the ranks s hops away."""
    local = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = t_ptr + local * n_elem * tl.itemsize(dtype)
    total = eastward = westward = tl.load(at, n_elem, dtype)
    for step in range(1, world_size // 2 + 1):
        two_new = 2 * step < world_size  # in the last step of an even ring both sides would bring the same tile
        tl.send("E", eastward)
        if two_new:
            tl.send("W", westward)
        eastward = tl.recv("W", n_elem, dtype)  # what travels east comes in from the west
        total = total + eastward
        if two_new:
            westward = tl.recv("E", n_elem, dtype)
            total = total + westward
    tl.store(at, total)


def run(torch):
    """Put a tile on each PE of a cube, install the queues of ccl.yaml, launch once."""
    plan = torch.install_ipcq(algorithm="my_allreduce")
    data = np.random.default_rng(0).standard_normal((RANKS, N), dtype=np.float32)
    t = torch.empty(RANKS, N, dtype="f32", dp=DPPolicy(pe="row_wise", num_cubes=1), name="t").copy_(data)
    args = kernel_args(n_elem=N, world_size=plan.world_size)
    torch.launch("my_allreduce", kernel, t, *args)
    everywhere = np.broadcast_to(data.sum(axis=0), data.shape)
    torch.testing.assert_close(t, everywhere, rtol=1e-5, atol=1e-5)
