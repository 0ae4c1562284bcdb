"""What the local Kubernetes refuses or fails at, said so that its user can act on it."""

from __future__ import annotations


class LocalError(Exception):
    """The message says what happened, to what, and what to do; it is shown without a traceback."""
