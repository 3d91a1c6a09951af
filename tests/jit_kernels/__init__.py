"""jit kernels tests."""
