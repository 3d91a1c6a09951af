"""Tests of runtime/default_model."""
