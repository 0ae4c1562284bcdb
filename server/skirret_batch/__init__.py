"""Batches nobody loses: the store, the record, the worker and their HTTP door."""
