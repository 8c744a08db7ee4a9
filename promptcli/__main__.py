"""``python -m promptcli``."""

from promptcli.cli.app import main

main()
