"""Brings a model's files to this machine, and its weights into memory, and says how far it is."""
