"""What comes with promptcli and can be deleted, folder by folder.

Each folder is registered by entry points in pyproject.toml, as a stranger's plug-in is. It imports
no private name of the package and nothing of another plug-in.
"""
