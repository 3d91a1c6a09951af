"""GGUF files as checkpoints: configuration, tokenizer, and an index of the tensors."""
