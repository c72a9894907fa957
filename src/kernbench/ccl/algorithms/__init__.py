"""Collective algorithms: a module for each, with ``kernel`` and ``kernel_args``; ``ccl.yaml`` declares their settings.

``kernel(t_ptr, *args, tl)`` works in place. ``kernel_args(*, n_elem, world_size, **config)`` computes ``args`` from
the size of the data and the configuration; keys that the algorithm does not need are ignored.

The closed forms of their times use four symbols. S is the number of bytes of a rank, n the number of ranks. B is the
bandwidth of a link or of the MATH engine, whichever is lower. alpha is the latency of a message from its send to the
use of its data, without the transfer time of its bytes.
"""
