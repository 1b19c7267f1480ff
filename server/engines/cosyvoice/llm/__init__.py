"""The language model: text in, speech codes out (25 a second). Qwen2 without its text head, many sessions at once."""
