"""Steps of chunks on a GPU."""
