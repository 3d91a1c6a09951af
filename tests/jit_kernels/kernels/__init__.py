"""Kernels against their references, on a CUDA device or in Triton's interpreter."""
