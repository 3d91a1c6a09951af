"""Has Triton compile a kernel in one of several processes, while the others wait for it.

Triton asks its cache for a kernel, compiles it where it is not there, and puts it. Between the
question and the answer the cache holds the lock on that kernel.
"""

import os
from pathlib import Path

from triton import knobs  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.cache import FileCacheManager  # pyright: ignore[reportMissingTypeStubs]

from jit_kernels.compile_lock import CompileLock

__all__ = ["OneCompilerCache", "use_one_compiler"]

# Longest that one kernel of another process is waited for.
_LIMIT_S = 120.0


class OneCompilerCache(FileCacheManager):
    """Triton's cache of one kernel; whoever does not find the kernel has the turn to compile it."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        shared = not override and not dump
        self._lock = CompileLock(Path(str(self.cache_dir), "compiling")) if shared else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the files of a kernel; None, after the turn came, where it is to be compiled."""
        found = super().get_group(filename)
        if found is not None or self._lock is None:
            return found
        self._lock.acquire(f"the Triton kernel {Path(filename).stem}", limit_s=_LIMIT_S)
        found = super().get_group(filename)
        if found is not None:
            self._lock.release()
        return found

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Note the files of a kernel that was compiled, and let others have them."""
        try:
            return super().put_group(filename, group)
        finally:
            if self._lock is not None:
                self._lock.release()

    def __del__(self) -> None:
        """Let others have their turn where the kernel did not compile."""
        lock = getattr(self, "_lock", None)
        if lock is not None:
            lock.release()


def use_one_compiler() -> None:
    """Have Triton use this cache, unless the environment names one."""
    if not os.environ.get("TRITON_CACHE_MANAGER"):
        knobs.cache.manager_class = OneCompilerCache
