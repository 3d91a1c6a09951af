"""Tests of `runtime.replicas`."""
