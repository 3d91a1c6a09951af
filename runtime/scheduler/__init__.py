"""The engine loop: admits requests, plans steps, settles results, replies."""
