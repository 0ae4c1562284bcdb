"""Text to tokens and back: tokenizer, chat template, stop strings, the text of one choice."""
