"""The public verbs of `DurableQueue`, by what they are about."""
