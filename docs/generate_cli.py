"""Write docs/cli.md: the ``--help-all`` of every command, 80 columns wide."""

import sys
from pathlib import Path

from click.testing import CliRunner

from promptcli.cli.app import Command, command

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Commands

Made by `make docs` from `promptcli COMMAND --help-all`; not written by hand. `--help` describes the
usual options and names the others.
"""


def page() -> str:
    """Return the page."""
    root = command()
    runner = CliRunner(
        env={"COLUMNS": "80", "PROMPTCLI_BACKBONE": None, "PROMPTCLI_DATA_DIR": None}
    )
    parts = [HEAD]
    for words, called in [((), root), *sorted(root.walk(), key=lambda row: row[0])]:
        option = "--help-all" if isinstance(called, Command) else "--help"
        shown = runner.invoke(root, [*words, option], prog_name="promptcli", color=False)
        if shown.exit_code:
            sys.exit(f"promptcli {' '.join(words)} {option} ended with {shown.exit_code}")
        text = "\n".join(line.rstrip() for line in shown.output.strip("\n").splitlines())
        title = " ".join(("promptcli", *words))
        parts.append(f"{'##' if len(words) < 2 else '###'} `{title}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
