"""Seeded perturbations of texts, for evaluation of robustness: pure functions that compose."""
