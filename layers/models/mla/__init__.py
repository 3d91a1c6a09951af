"""DeepSeek V2-Lite, V2, V3 and R1: heads that read one latent record a position."""
