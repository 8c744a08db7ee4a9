"""One file for each group of commands; a command parses its arguments, calls the library and prints
the result.

torch is imported only when a command runs.
"""
