"""Export of a checkpoint: its graphs, their parity, the bundle folder."""
