"""Make the questions that ``adapt`` measures a model's knowledge of other texts by.

The questions of ``passages.py`` and some more, with the sections of the project's guides: the
beginning of each section's prose, below its heading. A line of the file is a query, a document and
a grade; a document that answers no question has an empty query.

    python benchmarks/shipped_questions.py -o promptcli/plugins/domain/questions.jsonl
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from passages import GENERATED, QUESTIONS, ROOT

#: Records of measurements, which no question is about.
LEFT_OUT = GENERATED | {"results.md", "parity.md", "line.md"}
_WORDS = 60

MORE = [
    ("what to do about texts longer than the model reads", "search.md", "Long texts"),
    (
        "where does the program keep its files, and how do I get rid of it",
        "getting-started.md",
        "Where models are kept, and how to uninstall",
    ),
    ("work without an internet connection", "getting-started.md", "Offline"),
    ("complete commands with the tab key in my shell", "getting-started.md", "Completion"),
    ("is the difference between two models real", "evaluate.md", "Differences"),
    ("LaTeX output for a publication", "evaluate.md", "Tables for a paper"),
    ("does training need a lot of memory", "train.md", "Memory and processes"),
    ("how much does the random seed matter", "train.md", "Several seeds"),
    ("misleading sentences that look like the right answer", "train.md", "Hard negatives"),
    ("plot the loss during training", "train.md", "Curves and trackers"),
    ("which texts does the training file need", "train.md", "Data"),
    ("run several graphics cards at once", "gpu.md", "Several GPUs"),
    ("will I get the same numbers twice on a graphics card", "gpu.md", "What is repeatable"),
    ("sentences in German or French", "languages.md", "What is chosen for you"),
    ("accents and compound words when searching", "languages.md", "Search by words"),
    ("embeddings from a decoder-only language model", "causal.md", "Choose a recipe"),
    ("use the library from several threads", "python.md", "Threads, processes, errors"),
    ("whiten vectors so that they fill the space", "transforms.md", "Choose a transform"),
    ("averaged word vectors that are very fast", "transforms.md", "`mini-static`, the fast tier"),
    ("extract keywords from a document", "interop.md", "KeyBERT"),
    ("few labelled examples for a text classifier", "interop.md", "SetFit"),
    ("query vectors with SQL", "interop.md", "DuckDB"),
    ("retrieval augmented generation framework", "interop.md", "LlamaIndex"),
    ("can a malicious file harm my computer", "security.md", "How each kind of file is read"),
    ("does it send my texts anywhere", "security.md", "Network"),
    ("add a subcommand of my own", "extending.md", "A command"),
    ("report training progress to my own system", "extending.md", "A tracker"),
    ("monitor the running service", "plugins/serve.md", "Metrics"),
    ("give a chat assistant access to my notes", "plugins/serve.md", "Agents"),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    documents = dict(sections())
    asked = dict[tuple[str, str], list[str]]()
    for question, file, heading in QUESTIONS + MORE:
        asked.setdefault((file, heading), []).append(question)
    rows = []
    for place, document in documents.items():
        for question in asked.pop(place, [""]):
            rows.append({"query": question, "document": document, "grade": int(bool(question))})
    assert not asked, f"no such section: {list(asked)}"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def sections() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the file and heading of each section of the guides, with the beginning of its prose."""
    for guide in sorted((ROOT / "docs").rglob("*.md")):
        if guide.name in LEFT_OUT:
            continue
        file = str(guide.relative_to(ROOT / "docs"))
        _, *parts = re.split(r"^## (.*)$", guide.read_text(encoding="utf-8"), flags=re.M)
        for heading, body in zip(parts[::2], parts[1::2], strict=True):
            prose = re.sub(r"^```.*?^```$|^\|.*?$", "", body, flags=re.M | re.S)
            words = _words(prose) or _words(body)
            yield (file, heading), f"{heading}\n{' '.join(words[:_WORDS])}"


def _words(markdown: str) -> list[str]:
    """Return the words of Markdown without its signs and the addresses of links."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"[`*|]|^[#-]+", " ", text, flags=re.M).split()


if __name__ == "__main__":
    main()
