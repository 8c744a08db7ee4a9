"""The readers of files that the index has until it takes those of ``data``."""
