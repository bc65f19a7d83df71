"""The command `run`: shell jobs from a TOML file, driven by a `DurableQueue` over SQLite.

`jobfile` says what a file means, `toml_lines` where in it a fault stands; `process` and `leftovers` know about
operating-system processes, `logs` about the files that they write to; `report` turns events into lines and `printer`
gets lines out; `signals` hears that it is time to stop; `run` puts them together.
"""
