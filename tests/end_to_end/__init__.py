"""end to end tests."""
