"""What passages are worth: questions about the project's guides, searched by passages and line by
line.

README.md and the guides are wrapped at 80 columns into a temporary folder, of which an index is
made in both ways. Each question has one right section, named by its file and heading. An answer is
right if most of its lines stand in that section. The second figure counts no answer that is only
the section's heading: it shows where to read, and no more.

    python benchmarks/passages.py --model mini --model mini-static
"""

import argparse
import re
import tempfile
import textwrap
from pathlib import Path

import promptcli as pc
from promptcli.retrieval.ranking import Hit

ROOT = Path(__file__).parent.parent
#: Written from the commands' help texts, not for reading.
GENERATED = {"cli.md"}
WIDTH = 80
FOUND = (1, 5)

#: Question, file, heading of the section that answers it.
QUESTIONS = [
    (
        "how do I search a folder of notes without building anything first",
        "search.md",
        "Without an index",
    ),
    (
        "keep an index up to date when files in a directory change",
        "search.md",
        "Folders that change",
    ),
    ("only return rows from after 2020 in English", "search.md", "Conditions on columns"),
    ("find product codes and surnames exactly", "search.md", "How rows are ranked"),
    (
        "remove rows from an index and free the disk space",
        "search.md",
        "Add, replace and delete rows",
    ),
    ("find sentences that are nearly the same", "search.md", "Near-duplicates"),
    ("which kind of FAISS index is chosen for a million rows", "search.md", "Index types"),
    ("my spreadsheet export has semicolons and decimal commas", "getting-started.md", "Your files"),
    (
        "set a default data folder so that I need not type it",
        "getting-started.md",
        "Your own defaults",
    ),
    ("what does exit status 4 mean", "getting-started.md", "Exit codes"),
    ("use the server with the OpenAI Python package", "plugins/serve.md", "Use OpenAI's clients"),
    (
        "what happens when too many requests wait at the server",
        "plugins/serve.md",
        "Load, limits, stopping",
    ),
    ("require an API key from clients", "plugins/serve.md", "Keys and other machines"),
    ("score vectors that another program has made", "evaluate.md", "Other programs' vectors"),
    ("evaluate sentiment classification with a linear classifier", "evaluate.md", "Transfer tasks"),
    ("which training method should I take if I have only sentences", "train.md", "Which method"),
    ("resume training that was killed", "train.md", "Resume"),
    ("train on pairs with similarity scores", "train.md", "Graded pairs"),
    ("make a small fast model imitate a large one", "train.md", "Distil a teacher"),
    ("vectors that can be cut to fewer dimensions", "train.md", "Shorter vectors"),
    ("load the model in sentence-transformers", "interop.md", "sentence-transformers"),
    ("upload my model so that others can download it", "interop.md", "The Hugging Face hub"),
    ("convert a model to ONNX", "interop.md", "ONNX, OpenVINO, fastembed"),
    (
        "encode a large corpus on a cluster with job arrays",
        "scale.md",
        "Slurm, Kubernetes, Airflow",
    ),
    (
        "how much would it cost to embed a billion sentences",
        "scale.md",
        "What a billion sentences cost",
    ),
    ("store the embeddings in a Qdrant collection", "interop.md", "Qdrant"),
    ("make vector files smaller with int8 or binary codes", "interop.md", "Smaller vectors"),
    ("does it ever run code from a downloaded model", "security.md", "No foreign code"),
    ("topic modelling with BERTopic", "interop.md", "BERTopic"),
    ("write my own pooling as a plug-in", "extending.md", "Your own pooling"),
]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--model", action="append", help="repeatable; default: mini and mini-static"
    )
    arguments.add_argument(
        "--by", choices=("both", "meaning", "words"), default="both", help="how rows are ranked"
    )
    arguments.add_argument(
        "--misses", action="store_true", help="print the questions without a right answer"
    )
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        guides = Path(folder, "guides")
        guides.mkdir()
        write_guides(guides)
        for model in given.model or ("mini", "mini-static"):
            for rows in ("lines", "passages"):
                index = Path(folder, f"{Path(model).name}-{rows}")
                pc.SentenceIndex.sync(index, [guides], model=model, rows=rows)
                opened = pc.SentenceIndex.open(index)
                count = len(opened)
                questions = [question for question, *_ in QUESTIONS]
                answers = opened.search(questions, max(FOUND), by=given.by)
                figures = list[str]()
                for headings in (True, False):
                    places = [
                        place_of(hits, guides / file, heading, headings=headings)
                        for hits, (_, file, heading) in zip(answers, QUESTIONS, strict=True)
                    ]
                    shares = [
                        sum(place <= most for place in places) / len(places) for most in FOUND
                    ]
                    figures.append(
                        ", ".join(
                            f"@{most} {share:.3f}"
                            for most, share in zip(FOUND, shares, strict=True)
                        )
                    )
                print(
                    f"{model:12} {rows:9} {count:6,} rows  recall {figures[0]}; without headings"
                    f" {figures[1]}"
                )
                for (question, *_), place in zip(QUESTIONS, places, strict=True):
                    if given.misses and place > max(FOUND):
                        print(f"    {question}")


def write_guides(folder: Path) -> None:
    """Write the guides, wrapped, into a folder."""
    for guide in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if guide.name in GENERATED:
            continue
        within = guide.relative_to(ROOT / "docs" if guide.parent != ROOT else ROOT)
        written = folder / within
        written.parent.mkdir(exist_ok=True)
        written.write_text(wrapped(guide.read_text(encoding="utf-8")), encoding="utf-8")


def wrapped(markdown: str) -> str:
    """Return Markdown with its paragraphs and list items wrapped.

    Code and tables stay as they are.
    """
    lines = list[str]()
    paragraph = list[str]()
    in_code = False

    def end_paragraph() -> None:
        if paragraph:
            indent = re.match(r"\s*(?:[-*] |\d+\. )?", paragraph[0])
            assert indent is not None
            words = " ".join(line.strip() for line in paragraph)
            blanks = " " * len(indent[0])
            lines.extend(
                textwrap.wrap(
                    words,
                    WIDTH,
                    initial_indent=" " * (len(paragraph[0]) - len(paragraph[0].lstrip())),
                    subsequent_indent=blanks,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            paragraph.clear()

    for line in markdown.splitlines():
        fence = line.lstrip().startswith("```")
        if fence or in_code or not line.strip() or line.startswith(("#", "|")):
            end_paragraph()
            lines.append(line)
            in_code ^= fence
        else:
            if re.match(r"\s*(?:[-*] |\d+\. )", line):
                end_paragraph()
            paragraph.append(line)
    end_paragraph()
    return "\n".join(lines) + "\n"


def section_of(file: Path, heading: str) -> range:
    """Return the numbers of the lines from a heading to the next one."""
    lines = file.read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {heading}") + 1
    ends = [
        number for number, line in enumerate(lines, 1) if line.startswith("## ") and number > start
    ]
    return range(start, ends[0] if ends else len(lines) + 1)


def place_of(hits: list[Hit], file: Path, heading: str, *, headings: bool) -> int:
    """Return the rank of the first answer from a section, or one beyond the last.

    With ``headings`` a heading alone is an answer.
    """
    section = section_of(file, heading)
    for rank, hit in enumerate(hits, 1):
        place = re.fullmatch(r"(.*):(\d+)(?:-(\d+))?(?:#\d+)?", str(hit.id))
        assert place is not None
        lines = range(int(place[2]), int(place[3] or place[2]) + 1)
        inside = len(range(max(lines.start, section.start), min(lines.stop, section.stop)))
        if (
            place[1] == str(file)
            and 2 * inside > len(lines)
            and (headings or lines[-1] > section.start)
        ):
            return rank
    return max(FOUND) + 1


if __name__ == "__main__":
    main()
