"""Kernels against their floors on the GPU at hand: `python -m tests.bench.kernels [op ...]`."""
