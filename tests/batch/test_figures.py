"""What a batch costs and how soon it tells: figures, each printed by the test that measures it.

Short here; at full length, and against the small model, with `make e2e-full`.
"""
