"""For tests: servers that misbehave on demand, and a small Kubernetes API server."""
