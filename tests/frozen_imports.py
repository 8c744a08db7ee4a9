"""Imported last by the server that processes are forked from: none of them looks through all that
it has imported.
"""

import gc

gc.collect()
gc.freeze()
