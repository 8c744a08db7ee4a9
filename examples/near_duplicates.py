"""Find the lines of a file that say the same in other words, and keep one of each group.

python near_duplicates.py SENTENCES [THRESHOLD] > kept.txt
"""

import sys
from pathlib import Path

import promptcli as pc


def main(file: str, threshold: str = "0.9") -> None:
    """Print the lines without near-duplicates; the groups go to standard error, for a look."""
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    index = pc.SentenceIndex.build(lines, pc.load("mini"))
    dropped = set()
    for group in index.dups(threshold=float(threshold)):
        first, *others = group
        dropped |= {hit.id for hit in others}
        print(
            first.text,
            *(f"  {hit.score:.2f}  {hit.text}" for hit in others),
            sep="\n",
            file=sys.stderr,
        )
    print(*(line for number, line in enumerate(lines) if number not in dropped), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
