"""Training: the model family, the data pipeline, the loop, checkpoints and their export as bundles."""
