"""Text to train language models on: where it comes from, and how it becomes tokens."""
