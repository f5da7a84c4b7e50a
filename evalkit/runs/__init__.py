"""A run: its plan, its evidence, its seal and what is derived from them."""
