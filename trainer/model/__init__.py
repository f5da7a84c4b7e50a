"""The decoder-only transformer, part by part: norms, rotary positions, attention, decoder, weights."""
