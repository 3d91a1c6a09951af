"""Messages between a scheduler and the executors of its steps, which may be other processes."""
