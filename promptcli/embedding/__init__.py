"""One encode step on many processes and machines: parts of a folder, columns of data sets.

Transports are engines.
"""
