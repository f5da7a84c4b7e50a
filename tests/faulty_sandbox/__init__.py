"""The product's server with one fault planted in it: what a replay must catch and text scores can't see."""
