"""Tests of `layers/models`."""
