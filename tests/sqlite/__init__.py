"""The tests of the SQLite storage, beyond what the storage contract asks of every adapter."""
