"""DeepSeek V4 on tensors and cache views."""
