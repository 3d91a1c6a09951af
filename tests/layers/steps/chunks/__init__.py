"""Tests of `layers/steps/chunks`."""
