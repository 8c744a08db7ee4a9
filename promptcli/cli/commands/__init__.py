"""One file per command group: parse, call, print.

No logic; torch is imported when a command runs.
"""
