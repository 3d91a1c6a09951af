"""Tests of runtime.lang: a file per module, over a scripted backend."""
