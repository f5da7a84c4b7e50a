"""Conversion: models of other formats become checkpoint folders that `trainer export` takes."""

from trainer.convert.run import convert

__all__ = ["convert"]
