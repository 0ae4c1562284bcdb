"""The front door: routes requests to models by name, answers files and batches."""
