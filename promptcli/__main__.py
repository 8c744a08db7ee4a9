"""``python -m promptcli``."""

from promptcli.cli import main

main()
