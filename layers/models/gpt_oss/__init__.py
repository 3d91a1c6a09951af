"""gpt-oss: layers with a window in turn with full ones, sinks, and experts with biases."""
