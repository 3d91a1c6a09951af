"""The test suite: a mirror of the packages, end-to-end tests, and benchmarks."""
