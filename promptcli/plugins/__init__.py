"""What comes with promptcli and can be deleted, folder by folder.

Each folder is registered by entry points in pyproject.toml, as a plug-in of a stranger is, and
imports public names only: those of ``promptcli`` and of ``promptcli.extending``.
"""
