"""Loading of a checkpoint at full size: writes a synthetic one, and measures the loader on it."""
