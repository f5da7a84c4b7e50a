"""From data files to batches: corpus, tokenizer, documents, packing."""
