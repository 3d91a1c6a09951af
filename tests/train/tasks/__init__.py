"""What the default model is taught, a family of tasks a file."""
