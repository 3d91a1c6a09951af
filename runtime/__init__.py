"""Processes, scheduling and serving. Imports nothing, so that parts of it stay light."""
