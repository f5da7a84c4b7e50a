"""Conversion: models of other formats become checkpoint folders that `trainer export` takes, and Hugging Face ones."""

from trainer.convert.run import convert, convert_to_huggingface

__all__ = ["convert", "convert_to_huggingface"]
