"""Has the C library keep the memory of large tensors that were freed, for the next ones.

In: nothing. Out: settings of this process; nothing where another C library than glibc allocates, or a GPU computes.
Why: glibc hands each block of more than 32 MB back to the kernel, which gives the next one pages of zeros, 4 KB at a
time. An evaluation of a pretrained student in a game of several turns spent half of its processor time there. The
process then holds its peak until it ends. https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of malloc.h."""


@cache
def keep_freed_memory() -> None:
    """Sets no block apart from the heap, and never gives its end back."""
    import torch

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or torch.cuda.is_available():
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)
