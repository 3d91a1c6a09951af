"""Tests of `layers/models/deepseek_v4`."""
