"""Decides: what was observed goes in, a Plan comes out. No clock, no network, no framework."""
