"""Decides what every step computes. No torch, no clock: pages are numbers and time is handed in."""
