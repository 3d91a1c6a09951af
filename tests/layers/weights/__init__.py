"""Tests of `layers/weights`."""
