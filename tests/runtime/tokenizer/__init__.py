"""Tests of runtime/tokenizer."""
