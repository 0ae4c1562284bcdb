"""The contracts of Skirret: what two of its processes must agree on, and nothing that runs."""

__version__ = "0.1.0"
