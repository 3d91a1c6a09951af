"""The C core of the cache: see `core.h` for its parts, `binding.py` for how Python calls it."""
