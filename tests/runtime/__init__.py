"""Tests of the processes: scheduler, executor, server, language."""
