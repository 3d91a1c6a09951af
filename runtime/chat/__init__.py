"""DeepSeek V4's own chat format: conversations to token ids, and answers back to their parts."""
