"""Llama, Mistral, Qwen2.5, Qwen3 and Qwen3-MoE: heads of queries that share keys in groups."""
