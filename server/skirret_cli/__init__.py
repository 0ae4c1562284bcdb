"""The commands `skirret` and `kubectl skirret`."""
