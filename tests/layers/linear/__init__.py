"""Tests of `layers/linear`."""
