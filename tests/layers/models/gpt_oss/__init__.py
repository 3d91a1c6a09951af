"""Tests of `layers/models/gpt_oss`."""
