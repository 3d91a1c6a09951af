"""The radix tree over all sequences: pages of tokens, resume points, who has locked what."""
