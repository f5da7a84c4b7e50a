"""evalkit measures language models, compares them and judges whether one may be released."""

__version__ = "0.1.0"
