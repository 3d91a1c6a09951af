"""Names of the formats that answers are read by, as the flags take them: SGLang's names."""

from typing import Literal

ToolCallParser = Literal[
    "auto", "deepseekv3", "deepseekv31", "deepseekv32", "deepseekv4", "gpt-oss", "llama3",
    "mistral", "qwen25",
]  # fmt: skip
ReasoningParser = Literal["auto", "deepseek-r1", "deepseek-v3", "deepseek-v4", "gpt-oss", "qwen3"]
