"""Tests of `layers/parallel`."""
