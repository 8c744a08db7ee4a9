"""The library: what the commands do, as functions. ``import promptcli as pc`` finds all of it without loading anything.

Like the entrance, and unlike every other room, it reads the environment: PROMPTCLI_HOME says where models are kept.
What other programs and the hub need is in ``exchange``.
"""
