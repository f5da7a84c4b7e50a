"""Existing test dialogues → dialogue files; one reader a format. See docs/importers.md."""
