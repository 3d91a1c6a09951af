"""mem cache tests."""
