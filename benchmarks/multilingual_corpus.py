"""Make the vocabulary and the texts that mini-multi is trained on, none of them of STS or SICK.

    python benchmarks/multilingual_corpus.py --data FOLDER --packages FOLDER -o WORK [--bags N]

WORK/vocabulary.json holds the tokens with their frequencies, WORK/words.txt the tokens alone. A
corpus is WORK/NAME.txt, the texts that the teacher reads, and WORK/NAME.tsv, what the student reads
for each: language, row of NAME.txt, text. The vector of a translation is its original's.

The data FOLDER holds ``parallel``, ``stsb-multi`` (development sets: their sentences are left out)
and the English texts of ``distillation_corpus.py``. The packages FOLDER holds Debian's packages
wesnoth-1.16-data, wesnoth-1.16-CAMPAIGN, manpages-LANGUAGE and the dictionaries that
``multilingual_translations.py`` names. The corpus ``glossed`` is translated with them and with
words of the corpora before it, and needs WORK/words.vectors of ``multilingual_teacher.py``. NOTICE
names all sources.
"""

import argparse
import csv
import gettext
import gzip
import html
import json
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from multilingual_table import centred, read_vectors, tokenizer_of
from multilingual_translations import (
    Lexicon,
    by_apertium,
    dictionary_entries,
    lexicon,
    neighbours,
    together,
    word_by_word,
    words,
)
from wordfreq import get_frequency_dict, top_n_list

Group = dict[str, str]  # language to text, translations of one another; the teacher reads the first

#: The words of each language that have a row. Rich inflection needs more; where words are written
#: without spaces, characters and words of two make up the others.
WORDS = {
    "en": 9000,
    "de": 12000,
    "es": 10000,
    "fr": 10000,
    "it": 11000,
    "nl": 10000,
    "pl": 15000,
    "pt": 10000,
    "ru": 15000,
    "zh": 10000,
    "ja": 10000,
}
WITHOUT_SPACES = {"zh", "ja"}
_ROWS = 126_000
_KNOWN_WORDS = 60_000  # words of a language whose letters and parts are counted
_ENGLISH = 25_000  # sentences of each kind
_TRANSLATED = 50_000  # sentences: captions and inferences
#: The languages to which Apertium has no way from English, and sentences for each.
_GLOSSED, _GLOSSES = ("de", "nl", "pl", "ru", "zh", "ja"), 12_000
_BAG_WORDS = 25_000  # words of a language that bags are drawn from
_LONGEST_STEM = 8  # characters of a part at the beginning of a word
_LONGEST_PART = 5  # characters of others
_ROUND = 1000  # bags of a language that are drawn together
_FLATTENING = 0.6  # exponent of a word's frequency in bags
_MARKS = "0123456789.,;:!?-()\"'%&/$€£_+*=<>#@[]{}|~^\\«»„“”‘’‚–—…·、。！？「」『』《》（）¿¡"

#: The treebanks of ``parallel/ud.jsonl.gz`` that are CC BY-SA.
_TREEBANKS = {"de", "fr", "es", "pt", "ru", "ja", "zh"}
_CATALOGUES = {"zh": "zh_CN", "pt": "pt_BR"}  # folders with another name than the language
_SHORTEST = {"zh": 6, "ja": 6}  # characters of a text; of other languages:
_SHORT, _LONG = 12, 250


def plain(text: str) -> str:
    """Return the letters and digits of a text."""
    return "".join(filter(str.isalnum, text.lower()))


def normalized(word: str) -> str:
    """Return a word as the tokenizer sees it."""
    return unicodedata.normalize("NFKC", word).lower()


def frequent_words(language: str, count: int) -> Iterator[tuple[str, float]]:
    """Yield words and their frequencies, most frequent first."""
    frequencies = get_frequency_dict(language)
    for word in top_n_list(language, count):
        yield normalized(word), frequencies[word]


def vocabulary() -> dict[str, float]:
    """Return the tokens and their frequencies, means over the languages.

    They are the frequent words of every language, all characters of words, and the commonest parts
    of words without a row.
    """
    frequencies: defaultdict[str, float] = defaultdict(float)
    tokens: dict[str, None] = {}
    characters: dict[str, None] = dict.fromkeys(_MARKS)
    others: list[tuple[str, float]] = []  # words without a row that are written with spaces
    for language, count in WORDS.items():
        kept = 0
        for word, frequency in frequent_words(language, _KNOWN_WORDS):
            characters.update(dict.fromkeys(filter(str.isprintable, word)))
            frequencies[word] += frequency / len(WORDS)
            if not re.fullmatch(r"[^\W\d_]+", word):
                continue
            if kept < count:
                kept += 1
                tokens[word] = None
            elif language not in WITHOUT_SPACES:
                others.append((word, frequency))
    tokens.update(characters)
    parts = parts_of((word, frequency) for word, frequency in others if word not in tokens)
    for part, _ in parts.most_common():
        if len(tokens) >= _ROWS:
            break
        tokens[part] = None
    return {token: frequencies.get(token, 0.0) + 1e-8 for token in tokens}


def parts_of(words: Iterable[tuple[str, float]]) -> Counter[str]:
    """Return the weights of the parts of words: of stems, which words begin with, and of others.

    A long part of a frequent word weighs most; the root of the frequency leaves room for rare ones.
    """
    parts: Counter[str] = Counter()
    for word, frequency in words:
        weight = frequency**0.5
        for length in range(3, min(_LONGEST_STEM, len(word) - 1) + 1):
            parts[word[:length]] += weight * (length - 1)
        for length in range(2, _LONGEST_PART + 1):
            for start in range(1, len(word) - length + 1):
                parts[word[start : start + length]] += weight * (length - 1) / 2
    return parts


def bags(count: int) -> Iterator[Group]:
    """Yield bags of three to nine random words of one language, ``count`` of each language.

    They come by rounds of all languages, so that a larger count only adds bags at the end.
    """
    words, chances = {}, {}
    for language in WORDS:
        drawn = {
            word: frequency
            for word, frequency in frequent_words(language, _BAG_WORDS)
            if re.fullmatch(r"[^\W\d_]+", word)
        }
        weights = np.array(list(drawn.values())) ** _FLATTENING
        words[language] = list(drawn)
        chances[language] = weights / weights.sum()
    for turn in range(count // _ROUND):
        for number, language in enumerate(WORDS):
            draw = np.random.default_rng([turn, number])
            lengths = draw.integers(3, 10, _ROUND)
            picked = draw.choice(len(words[language]), lengths.sum(), p=chances[language])
            space = "" if language in WITHOUT_SPACES else " "
            for rows in np.split(picked, np.cumsum(lengths)[:-1]):
                yield {language: space.join(words[language][row] for row in rows)}


def prepared(path: Path) -> Iterator[Group]:
    """Yield the groups of a file, English first where it has it."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            group = json.loads(line)
            yield {key: group[key] for key in WORDS if key in group}


def drawn(groups: Iterable[Group], count: int) -> list[Group]:
    """Return some of the groups in random order."""
    chosen = list(groups)
    random.Random(0).shuffle(chosen)
    return chosen[:count]


def treebanks(path: Path) -> Iterator[Group]:
    """Yield the sentences of the treebanks that may be used."""
    for group in prepared(path):
        if group.keys() <= _TREEBANKS:
            yield group


def readable(text: str) -> str:
    """Return a text without markup and line breaks."""
    return " ".join(html.unescape(re.sub("<[^>]+>", "", text)).split())


def unpacked(packages: Path, pattern: str, folder: Path) -> None:
    """Unpack the packages of a pattern into a folder."""
    for package in sorted(packages.glob(pattern)):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)


def stories(packages: Path) -> Iterator[Group]:
    """Yield the texts of a game and its campaigns in all languages that have them."""
    groups: dict[str, Group] = {}
    with tempfile.TemporaryDirectory() as name:
        unpacked(packages, "wesnoth-*.deb", folder := Path(name))
        for language in WORDS:
            code = _CATALOGUES.get(language, language)
            for path in sorted(folder.glob(f"usr/share/games/**/{code}/LC_MESSAGES/*.mo")):
                with path.open("rb") as file:
                    catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
                for key, translation in catalogue.items():
                    if not isinstance(key, str) or not isinstance(translation, str):
                        continue
                    original = key.split("\x04")[-1].split("^")[-1]
                    if "|" in original or re.search(r"[{}\\$]|%[sd]", original):
                        continue
                    originals = sentences(readable(original), "en")
                    translations = sentences(readable(translation), language)
                    if len(originals) != len(translations):
                        continue
                    for first, second in zip(originals, translations, strict=True):
                        if first != second:
                            groups.setdefault(first, {"en": first})[language] = second
    yield from groups.values()


def sentences(text: str, language: str) -> list[str]:
    """Split a text at its ends of sentences."""
    if language in WITHOUT_SPACES:
        return [part for part in re.split("(?<=[。！？])(?![」』”）])", text) if part]
    return re.split(r"(?<=[.!?])\s+(?=[\w¿¡])", text)


def manuals(packages: Path) -> Iterator[Group]:
    """Yield the sentences of manual pages, 6,000 of a language at most."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        unpacked(packages, "manpages-*.deb", folder := Path(name))
        for language in WORDS:
            code = _CATALOGUES.get(language, language)
            found: dict[str, None] = {}
            for path in sorted(folder.glob(f"usr/share/man/{code}/man*/*.gz")):
                if not path.is_symlink():
                    found.update(dict.fromkeys(manual_sentences(path, language)))
            chosen = sorted(found)
            draw.shuffle(chosen)
            for text in chosen[:6000]:
                yield {language: text}


def manual_sentences(path: Path, language: str) -> Iterator[str]:
    """Yield the sentences of a manual page's paragraphs, without its macros."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        page = file.read()
    page = re.sub(
        r"\\f[BIRP]|\\f\(CW|\\[&/|]|^\.(?:[BI]|BR|IR|RB|RI|BI|IB|SM) ", "", page, flags=re.M
    )
    page = page.replace(r"\-", "-").replace(r"\ ", " ")
    for paragraph in re.split(r"\n[.'].*|\n\n", page):
        for text in sentences(readable(paragraph), language):
            if "\\" not in text and text[-1:] in ".!?。！？":
                yield text


def english(data: Path) -> list[str]:
    """Return English sentences: captions, inferences, examples of a dictionary."""
    draw = random.Random(0)
    found: dict[str, None] = {}
    for texts in (
        table(data / "pairs/captions_coco.tsv", (0, 1)),
        table(data / "nli/nli_pairs.tsv", (1, 2)),
        lines(data / "corpus/wordnet_examples.txt"),
    ):
        draw.shuffle(texts)
        found.update(dict.fromkeys(texts[:_ENGLISH]))
    return list(found)


def translated(sentences: Sequence[str]) -> Iterator[Group]:
    """Yield English sentences with translations by Apertium."""
    found = by_apertium(sentences)
    for place, text in enumerate(sentences):
        yield {"en": text} | {key: texts[place] for key, texts in found.items()}


def glossed(
    sentences: Sequence[str], packages: Path, folder: Path, tokens: list[str]
) -> Iterator[Group]:
    """Yield English sentences with translations word by word, some for each language."""
    found: dict[str, dict[int, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        for pattern in ("trans-de-en*.deb", "mueller7-dict*.deb", "dict-freedict-*.deb"):
            unpacked(packages, pattern, dictionaries := Path(name))
        for number, language in enumerate(_GLOSSED):
            words_known = words_of(language, dictionaries, folder, tokens)
            draw = np.random.default_rng([7, number])
            found[language] = word_by_word(sentences, language, words_known, _GLOSSES, draw)
    for place, text in enumerate(sentences):
        others = {key: texts[place] for key, texts in found.items() if place in texts}
        if others:
            yield {"en": text} | others


def words_of(language: str, dictionaries: Path, folder: Path, tokens: list[str]) -> Lexicon:
    """Return the translations of English words in a language."""

    def cut(text: str) -> list[str]:
        found = tokenizer.encode(text, add_special_tokens=False).tokens
        return [token for token in found if token.isalpha()]

    tokenizer = tokenizer_of(tokens)
    spaced = language not in WITHOUT_SPACES
    sources = [
        list(dictionary_entries(dictionaries, language)),
        list(together(parallel_texts(folder, language), words if spaced else cut)),
    ]
    if not spaced:
        vectors = read_vectors(folder / "words.vectors")
        sources.append(
            list(neighbours(*(of_words(key, tokens, vectors) for key in ("en", language))))
        )
    return lexicon(language, sources)


def of_words(language: str, tokens: list[str], vectors: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the words of a language that have rows, and the teacher's vectors of them, centred."""
    rows = {token: row for row, token in enumerate(tokens)}
    found = [word for word, _ in frequent_words(language, _KNOWN_WORDS) if word.isalpha()]
    known = [word for word in dict.fromkeys(found) if word in rows][: WORDS[language]]
    return known, centred(vectors[[rows[word] for word in known]])


def parallel_texts(folder: Path, language: str) -> list[tuple[str, str]]:
    """Return the pairs of an English text and its translation in the corpora that are written."""
    pairs = []
    for name in ("tatoeba", "stories", "help"):
        originals = lines(folder / f"{name}.txt")
        for line in lines(folder / f"{name}.tsv"):
            key, row, text = line.split("\t")
            if key == language:
                pairs.append((originals[int(row)], text))
    return pairs


def lines(path: Path) -> list[str]:
    """Return the lines of a file."""
    with path.open(encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def table(path: Path, columns: tuple[int, ...]) -> list[str]:
    """Return the fields of some columns of a file with a header."""
    rows = [line.split("\t") for line in lines(path)[1:]]
    return [row[column] for row in rows for column in columns if column < len(row)]


def excluded_texts(data: Path) -> set[str]:
    """Return the letters and digits of every sentence of the development sets."""
    excluded = set()
    for path in (data / "stsb-multi").glob("*-dev.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                excluded.update(map(plain, row[:2]))
    for path in (data / "senteval/STS").glob("**/*"):
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                excluded.update(plain(field) for field in line.split("\t") if len(field) > 8)
    return excluded


def write(name: str, groups: Iterable[Group], folder: Path, excluded: set[str]) -> None:
    """Write a corpus, and say how many texts of each language it has.

    Its files take their names when they are complete.
    """
    paths = [folder / f"{name}.txt", folder / f"{name}.tsv"]
    begun = [path.with_suffix(f"{path.suffix}.begun") for path in paths]
    counts: Counter[str] = Counter()
    row = dropped = 0
    seen: set[str] = set()
    with (
        begun[0].open("w", encoding="utf-8") as sources,
        begun[1].open("w", encoding="utf-8") as texts,
    ):
        for group in groups:
            group = {key: " ".join(text.split()) for key, text in group.items()}
            if name != "bags":
                original = next(iter(group))
                group = {
                    key: text
                    for key, text in group.items()
                    if _SHORTEST.get(key, _SHORT) <= len(text) <= _LONG
                }
                if original not in group or group[original] in seen:
                    continue
                seen.add(group[original])
                if any(plain(text) in excluded for text in group.values()):
                    dropped += 1
                    continue
            sources.write(next(iter(group.values())) + "\n")
            for language, text in group.items():
                counts[language] += 1
                texts.write(f"{language}\t{row}\t{text}\n")
            row += 1
    for old, new in zip(begun, paths, strict=True):
        old.replace(new)
    print(f"{name}: {row:,} groups, {dropped:,} left out, {dict(counts)}", file=sys.stderr)


def main() -> None:
    """Write the vocabulary and the corpora."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--bags", type=int, default=14_000, help="of each language, in thousands")
    parser.add_argument("--only", action="append", help="corpora to write; default: all")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    parallel = arguments.data / "parallel"
    corpora = {
        "bags": lambda: bags(arguments.bags),
        "tatoeba": lambda: prepared(parallel / "tatoeba.jsonl.gz"),
        "help": lambda: drawn(prepared(parallel / "help.jsonl.gz"), 5_000),
        "treebanks": lambda: treebanks(parallel / "ud.jsonl.gz"),
        "stories": lambda: stories(arguments.packages),
        "manuals": lambda: manuals(arguments.packages),
        "translated": lambda: translated(english(arguments.data)[:_TRANSLATED]),
        "glossed": lambda: glossed(
            english(arguments.data),
            arguments.packages,
            arguments.output,
            lines(arguments.output / "words.txt"),
        ),
    }
    if arguments.only is None or "vocabulary" in arguments.only:
        tokens = vocabulary()
        (arguments.output / "vocabulary.json").write_text(
            json.dumps(tokens, ensure_ascii=False), encoding="utf-8"
        )
        (arguments.output / "words.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        print(f"vocabulary: {len(tokens):,} tokens", file=sys.stderr)
    excluded = excluded_texts(arguments.data)
    for name, groups in corpora.items():
        if arguments.only is None or name in arguments.only:
            write(name, groups(), arguments.output, excluded)


if __name__ == "__main__":
    main()
