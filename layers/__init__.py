"""DeepSeek V4 on tensors and cache views; `NETWORK.md` says what it computes."""
