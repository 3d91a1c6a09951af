"""Tests of `layers/steps/reference`."""
