"""The limit of what is believed to be a rank."""

# More than any job has had; lists of ranks from 0 to the highest are made, which a damaged number must not blow up.
MOST_RANKS = 1 << 16
