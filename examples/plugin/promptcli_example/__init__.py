"""A command, a pooling and an objective for promptcli, in a package of its own."""
