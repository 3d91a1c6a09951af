"""DeepSeek V2-Lite, V2, V3, R1 and V3.2: heads that read one latent record a position."""
