"""Structured decoding: from a schema or regex to the tokens that may come next."""
