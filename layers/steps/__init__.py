"""What attention reads and writes in one step."""
