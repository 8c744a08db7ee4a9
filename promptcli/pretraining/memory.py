"""How the C library hands out memory while a run lasts."""

import ctypes
import platform

#: mallopt's parameters (malloc.h): from which size a piece is mapped by itself, how much freed memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_PIECE, _KEPT = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let the process reuse freed memory instead of giving it back: every step takes and frees the same sizes.

    Where the C library is glibc; elsewhere nothing happens. Without it each large result is mapped anew and its pages
    are cleared by the system, which costs as much as a product that fills them.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_PIECE)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
