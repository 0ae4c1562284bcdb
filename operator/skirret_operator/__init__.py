"""Skirret's operator: kopf watches, pure functions decide, server-side apply writes."""
