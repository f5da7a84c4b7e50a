"""Faults put into a training job on purpose, and what it takes to come back from them."""
