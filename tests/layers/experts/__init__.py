"""Tests of `layers/experts`."""
