"""Scheduler tests."""
