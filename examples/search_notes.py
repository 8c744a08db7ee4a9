"""Search your own notes by meaning: every paragraph of a folder's .md and .txt files is found by
what it says.

python search_notes.py NOTES "what you look for"
"""

import sys
from pathlib import Path

import promptcli as pc


def paragraphs(folder: Path) -> dict[str, str]:
    """Return every paragraph by its place, ``file:number``."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".txt")):
        blocks = path.read_text(encoding="utf-8").split("\n\n")
        texts = [" ".join(block.split()) for block in blocks if block.strip()]
        found |= {
            f"{path.relative_to(folder)}:{number}": text for number, text in enumerate(texts, 1)
        }
    return found


def main(folder: str, query: str) -> None:
    """Print the five paragraphs nearest to a query, with their cosines."""
    notes = paragraphs(Path(folder))
    index = pc.SentenceIndex.build(list(notes.values()), pc.load("mini"), ids=list(notes))
    # output="notes-index" keeps it in a folder; pc.SentenceIndex.open("notes-index") opens it again
    for hit in index.search(query, k=5):
        print(f"{hit.score:.2f}  {hit.id}  {hit.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
