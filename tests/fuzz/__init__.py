"""Fuzzing of what reads what others wrote: messages, heads, headers, configurations, answers."""
