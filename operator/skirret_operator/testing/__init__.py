"""Parts for tests of the operator: an API server in memory, and objects to put into it."""
