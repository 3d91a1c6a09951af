"""Which token lives where: the radix tree, its allocators, and the pools that shadow it."""
