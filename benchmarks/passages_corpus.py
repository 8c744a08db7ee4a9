"""Make passages and their titles, from which encoders can learn to search.

    python benchmarks/passages_corpus.py --data FOLDER --python SITE-PACKAGES -o passages.tsv

A line is a title, a tab and a passage of at most 90 words. They come from what a Debian system with
Python packages has: descriptions of packages (the short line and the text; `apt-get -o
Acquire::Languages=en update` fetches those of all packages), manual pages (the name and the
description; a heading and its paragraph) and Python packages (a heading of a README and its
paragraph; the first line of a docstring and the rest). FOLDER adds Wikipedia (a sentence and those
that follow it) and glosses (a word and its meaning). A row is left out if its title or passage is
a sentence of STS or SICK, as in ``distillation_corpus.py``.

Two more sources are read when `--sources` names them: `dictionaries`, entries of dictionaries in
dictd's format (Debian's dict-wn, dict-gcide, dict-foldoc and dict-jargon), and `guides`, headings
of reStructuredText files with the paragraphs below them (the kernel's, in Debian's linux-doc).
"""

import argparse
import ast
import gzip
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from distillation_corpus import bag_of_words, characters, lines, test_sentences

Row = tuple[str, str]  # title, passage

_FEWEST_WORDS, _MOST_WORDS = 8, 90  # of a passage
_MOST_TITLE_WORDS = 20
_WIKIPEDIA_SENTENCES = (2, 3, 4, 5)  # of a passage
_SOURCES = (
    "package descriptions",
    "manual pages",
    "Python packages' descriptions",
    "Python docstrings",
    "Wikipedia",
    "glosses",
)
_BASE_64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PARAGRAPH_MACROS = {"PP", "P", "LP", "TP", "IP", "HP", "sp", "RS", "RE", "Pp", "It"}
_FONT_MACROS = {"B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "SM", "SB"}


def descriptions(folder: Path) -> Iterator[Row]:
    """Yield the short and the long description of each package in apt's lists."""
    for path in sorted(folder.glob("*Translation-en*")):
        text = subprocess.run(
            ["/usr/lib/apt/apt-helper", "cat-file", path], capture_output=True, check=True
        ).stdout.decode()
        for title, body in re.findall(r"^Description-en: (.*)\n((?: .*\n)*)", text, re.MULTILINE):
            first, *others = re.split(r"^ \.\n", body, flags=re.MULTILINE)
            yield title, first
            if len(others) > 1:
                yield (
                    title,
                    " ".join(others[:-1]),
                )  # the last one is often about the package's files


def manuals(folder: Path) -> Iterator[Row]:
    """Yield names and headings of English manual pages, each with what follows."""
    for path in sorted(folder.glob("man[1-8]/*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", errors="ignore") as file:
            sections = re.split(r'^\.S[HS] +"?(.*?)"? *$', file.read(), flags=re.MULTILINE)
        name = ""
        for heading, source in zip(sections[1::2], sections[2::2], strict=True):
            paragraphs = [part for part in re.split(r"\n\s*\n", plain(source)) if part.strip()]
            if not paragraphs:
                continue
            if heading.upper() == "NAME":
                name = " ".join(paragraphs[0].split())
            elif heading.upper() == "DESCRIPTION":
                yield name, " ".join(paragraphs[:2])
            elif heading.upper() not in {"SYNOPSIS", "SEE ALSO", "AUTHOR", "AUTHORS", "COPYRIGHT"}:
                yield f"{name.split(' - ')[0]} {plain(heading).lower()}", paragraphs[0]


def plain(source: str) -> str:
    """Return the text of a manual page's source, without its examples."""
    text = list[str]()
    is_example = False
    for line in source.splitlines():
        macro, _, argument = line[1:].partition(" ")
        if not line.startswith((".", "'")):
            if not is_example:
                text.append(line)
        elif macro in {"nf", "EX"}:
            is_example = True
        elif macro in {"fi", "EE"}:
            is_example = False
        elif macro in _PARAGRAPH_MACROS:
            text.append("")
        elif macro in _FONT_MACROS and not is_example:
            text.append(argument.replace('" ', "").replace(' "', " ").replace('"', ""))
    joined = "\n".join(text)
    for escape, character in ((r"\\f(\(..|\[.*?\]|.)", ""), (r"\\\(cq|\\\(aq", "'"), (r"\\-", "-")):
        joined = re.sub(escape, character, joined)
    return re.sub(r"\\(\(..|\*\(..|\[.*?\]|s[-+]?\d|.)", "", joined)


def readmes(folder: Path) -> Iterator[Row]:
    """Yield the headings of the packages' own descriptions, each with the paragraph below it."""
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        if path.name.startswith("promptcli"):
            continue
        head, _, text = path.read_text(encoding="utf-8", errors="ignore").partition("\n\n")
        name = re.search(r"^Name: (.*)", head, re.MULTILINE)
        summary = re.search(r"^Summary: (.*)", head, re.MULTILINE)
        headings = re.split(r"^(?:#+ +(.*)|(.+)\n[=~*^-]{4,})$", text, flags=re.MULTILINE)
        if name and summary:
            yield f"{name[1]}: {summary[1]}", headings[0]
        for hashed, underlined, section in zip(
            headings[1::3], headings[2::3], headings[3::3], strict=True
        ):
            paragraphs = [part for part in section.split("\n\n") if is_prose(part)]
            if name and paragraphs:
                yield f"{name[1]}: {hashed or underlined}", paragraphs[0]


def docstrings(folder: Path) -> Iterator[Row]:
    """Yield the first line and the next paragraphs of the docstrings of modules in packages."""
    for path in sorted(folder.rglob("*.py")):
        if "promptcli" in path.parts or "tests" in path.parts:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                title, *paragraphs = (ast.get_docstring(node) or "").split("\n\n")
                prose = [part for part in paragraphs if is_prose(part)]
                if prose:
                    yield title, " ".join(prose[:2])


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is sentences, not code, a table or a list of arguments."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return (
        letters > 0.85 * len(paragraph)
        and re.search(r"[a-z]{3,}[.:]", paragraph) is not None
        and not re.search(r"^ *(>>>|:param|\.\. |---|```|<|\[?!\[)", paragraph, re.MULTILINE)
    )


def wikipedia(folder: Path, draw: random.Random) -> Iterator[Row]:
    """Yield sentences, each with the ones that follow it in the article."""
    for file in ("enwiki_core.txt", "enwiki_mlm.txt"):
        sentences = lines(folder / file)
        start = 0
        while start < len(sentences):
            count = draw.choice(_WIKIPEDIA_SENTENCES)
            yield sentences[start], " ".join(sentences[start + 1 : start + 1 + count])
            start += 1 + count


def glosses(file: Path) -> Iterator[Row]:
    """Yield words and their meanings."""
    for line in lines(file):
        word, _, meaning = line.partition("\t")
        yield word, meaning


def dictionaries(folder: Path) -> Iterator[Row]:
    """Yield headwords and their entries of the dictionaries in dictd's format (the table of
    entries counts in digits of base 64).
    """
    for table in sorted(folder.glob("*.index")):
        with gzip.open(table.with_suffix(".dict.dz")) as file:
            entries = file.read()
        for line in lines(table):
            word, *place = line.split("\t")
            start, length = (number_in_base_64(digits) for digits in place)
            text = entries[start : start + length].decode(errors="ignore")
            if not word.startswith("00"):  # these tell of the dictionary
                yield word, definition(text)


def number_in_base_64(digits: str) -> int:
    """Return the number that digits of base 64 write."""
    number = 0
    for digit in digits:
        number = number * 64 + _BASE_64.index(digit)
    return number


def definition(entry: str) -> str:
    """Return an entry's meanings, without headword, pronunciation, sources and numbers."""
    _, _, text = entry.partition("\n")
    text = re.sub(r"\[(?:[^\[\]]|\[[^\]]*\])*\]|\\[^\\]*\\|--[A-Z].*", " ", text)
    text = re.sub(r"^ *(?:n|v|adj|adv)? *\d+[.:]|\([\d-]+\)|<.*?>", " ", text, flags=re.MULTILINE)
    return re.sub(r"[{}]", "", text)


def guides(folder: Path) -> Iterator[Row]:
    """Yield the headings of reStructuredText files, each with the paragraphs below it."""
    for path in sorted(folder.rglob("*.rst*")):
        if "translations" in path.parts:
            continue
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", errors="ignore") as file:
            parts = re.split(r"^(.+)\n([=~*^\-#\"'])\2{3,}$", file.read(), flags=re.MULTILINE)
        subject = parts[1] if len(parts) > 1 else ""
        for heading, section in zip(parts[1::3], parts[3::3], strict=True):
            title = heading if heading == subject else f"{subject}: {heading}"
            for paragraph in [part for part in section.split("\n\n") if is_prose(part)][:3]:
                yield title, paragraph


def words(text: str, most: int) -> list[str]:
    """Return the first words of a text, without marks of Markdown, reStructuredText and links."""
    return re.sub(r"https?://\S+|[`*_|#<>]+", " ", text).split()[:most]


def training_parser(description: str | None, start: str) -> argparse.ArgumentParser:
    """Return a parser of what a training on passages reads: its four files, and a model to begin
    with.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--passages", "--titles", "--bodies", "--sentences"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--from", dest="start", default=start)
    return parser


def main() -> None:
    """Write the file, and say what each source gave and lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lists", type=Path, default=Path("/var/lib/apt/lists"))
    parser.add_argument("--manuals", type=Path, default=Path("/usr/share/man"))
    parser.add_argument("--python", type=Path, required=True, help="a folder site-packages")
    parser.add_argument("--dictionaries", type=Path, default=Path("/usr/share/dictd"))
    parser.add_argument("--guides", type=Path, default=Path("/usr/share/doc/linux-doc"))
    parser.add_argument("--sources", nargs="+", help="read these instead of the first six")
    parser.add_argument("--most", type=int, default=60_000, help="rows that are drawn of a source")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    draw = random.Random(0)
    excluded = test_sentences(arguments.data / "senteval")
    seen = set[str]()
    corpus = list[str]()
    sources = {
        "package descriptions": descriptions(arguments.lists),
        "manual pages": manuals(arguments.manuals),
        "Python packages' descriptions": readmes(arguments.python),
        "Python docstrings": docstrings(arguments.python),
        "Wikipedia": wikipedia(arguments.data / "corpus", draw),
        "glosses": glosses(arguments.data / "glosses/common_words.tsv"),
        "dictionaries": dictionaries(arguments.dictionaries),
        "guides": guides(arguments.guides),
    }
    for name in arguments.sources or _SOURCES:
        rows = sources[name]
        kept = list[str]()
        dropped = 0
        fewest = 1 if name in {"glosses", "dictionaries"} else _FEWEST_WORDS
        for title, passage in rows:
            title_words = words(title, _MOST_TITLE_WORDS)
            passage_words = words(passage, _MOST_WORDS)
            body = " ".join(passage_words)
            if not title_words or len(passage_words) < fewest or body in seen:
                continue
            seen.add(body)
            texts = (" ".join(title_words), body)
            if any(
                characters(text) in excluded or bag_of_words(text) in excluded for text in texts
            ):
                dropped += 1
            else:
                kept.append("\t".join(texts))
        draw.shuffle(kept)
        corpus += kept[: arguments.most]
        print(
            f"{name}: {min(len(kept), arguments.most):,} of {len(kept):,} rows, {dropped:,} of STS"
            " or SICK left out",
            file=sys.stderr,
        )
    draw.shuffle(corpus)
    arguments.output.write_text("\n".join(corpus) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
