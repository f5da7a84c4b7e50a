"""Other systems as optional targets. Nothing is decided by them."""
