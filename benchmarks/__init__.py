"""Measurements against other software; run by hand, never part of what is installed."""
