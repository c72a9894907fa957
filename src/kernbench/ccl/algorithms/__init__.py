"""Collective algorithms: one module each, with ``kernel`` and ``kernel_args``; the rest is declared in ``ccl.yaml``.

``kernel(t_ptr, *args, tl)`` works in place. ``kernel_args(*, n_elem, world_size, **config)`` makes its ``args`` from
the size of the data and the configuration; what it does not know it ignores.

In the closed forms of their times S is the bytes of a rank, n the ranks, B the lesser bandwidth of a link and MATH, and
alpha the time of a message from its send to the use of what came, without its bytes.
"""
