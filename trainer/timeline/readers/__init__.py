"""Readers of profiler files; `read_folder` finds out what each file of a folder is."""

from trainer.timeline.readers.folder import read_folder

__all__ = ["read_folder"]
