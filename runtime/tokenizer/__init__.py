"""Text in and out: tokenising, streams, incremental detokenisation."""
