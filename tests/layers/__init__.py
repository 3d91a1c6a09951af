"""layers tests."""
