"""The way back from production: traffic and outcomes → what the next evaluation stands on. See docs/ingest.md."""
