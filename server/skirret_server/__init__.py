"""Skirret's inference server: one model, one device set, OpenAI's API."""
