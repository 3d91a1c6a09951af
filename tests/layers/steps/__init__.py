"""Tests of `layers/steps`."""
