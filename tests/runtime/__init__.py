"""runtime tests."""
