"""Gemma 3 for text: five layers with a window to a full one, four norms a layer."""
