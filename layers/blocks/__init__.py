"""What layers of several networks are made of."""
