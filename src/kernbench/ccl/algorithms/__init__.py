"""Collective algorithms: a module for each, with ``kernel`` and ``kernel_args``; ``ccl.yaml`` declares their settings.

``kernel(t_ptr, *args, tl)`` works in place. ``kernel_args(*, n_elem, world_size, **config)`` computes ``args`` from
the size of the data and the configuration; it ignores keys that it does not need.

The closed forms of their times use four symbols. S is the bytes of a rank and n the number of ranks. B is the lesser
bandwidth of a link and MATH. alpha is the time of a message from its send to the use of its data, without its bytes.
"""
