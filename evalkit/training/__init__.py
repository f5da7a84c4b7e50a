"""Evaluation inside training: when to evaluate, on what, and proof that the training isn't touched."""
