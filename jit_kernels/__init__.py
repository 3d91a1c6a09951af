"""Pure functions on tensors: one folder an op, one torch reference each.

An op is built alike everywhere:

    op/__init__.py          the door: what it takes and gives, checks, and backends, best first
    op/reference.py         plain torch, runs anywhere, judges all others
    op/host.py, host.c      the CPU in C; `host_library` compiles all of it into one library
    op/triton_backend.py    kernels in Triton
    op/cuda_backend.py      kernels in CUDA, whose sources lie in `op/cuda`; `cuda_library` compiles
                            them at first use, with what they share in `device`
    op/<vendor>_backend.py  a vendor's kernels, imported only where they are chosen

`registry.select` chooses once, when the op is imported; `KERNEL_<OP>=name` chooses for it.
"""
