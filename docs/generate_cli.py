"""Write docs/cli.md: the ``--help`` of every command, 80 columns wide."""

import sys
from pathlib import Path

from click.testing import CliRunner

from promptcli.cli.app import command

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Commands

Made by `make docs` from `promptcli COMMAND --help`; not written by hand.
"""


def page() -> str:
    """Return the page."""
    root = command()
    runner = CliRunner(
        env={"COLUMNS": "80", "PROMPTCLI_BACKBONE": None, "PROMPTCLI_DATA_DIR": None}
    )
    parts = [HEAD]
    for words in [(), *sorted(path for path, _ in root.walk())]:
        shown = runner.invoke(root, [*words, "--help"], prog_name="promptcli", color=False)
        if shown.exit_code:
            sys.exit(f"promptcli {' '.join(words)} --help ended with {shown.exit_code}")
        text = "\n".join(line.rstrip() for line in shown.output.strip("\n").splitlines())
        title = " ".join(("promptcli", *words))
        parts.append(f"{'##' if len(words) < 2 else '###'} `{title}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
