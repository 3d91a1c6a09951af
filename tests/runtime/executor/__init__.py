"""Tests of `runtime.executor`."""
