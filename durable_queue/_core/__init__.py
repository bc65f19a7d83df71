"""The decisions: synchronous, total, without clock, storage, event loop or log."""
