"""Chooses the next token of many sequences at once, each by its own parameters."""
