"""Programs of our own in the call forms of public sglang.lang programs, to run on any backend."""
