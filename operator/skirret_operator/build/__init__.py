"""Builders: one noun a function, from what a user wrote to the object Kubernetes gets."""
