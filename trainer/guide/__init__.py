"""The seven steps of a new training, and what they left as evidence."""
