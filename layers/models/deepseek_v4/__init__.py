"""DeepSeek V4; `layers/NETWORK.md` has its equations."""
