"""Translate English sentences by Debian's free tools, for the texts of mini-multi.

Spanish, Italian, Portuguese and French come from Apertium, which must be installed with its pairs
(packages apertium, apertium-eng-spa, apertium-spa-ita, apertium-es-pt, apertium-fr-es). For the
other languages no such pair exists, and sentences are translated word by word. The mean of words
does not see their order, so little is lost by that.

A word's translations come from the dictionaries of the packages trans-de-en, mueller7-dict and
dict-freedict-PAIR, from words that occur together in parallel texts, and in Chinese and Japanese
from the teacher's nearest words too. Where words inflect, forms with the same stem join them.
"""

import gzip
import itertools
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import snowballstemmer
from scipy import sparse
from wordfreq import get_frequency_dict, top_n_list

Lexicon = dict[str, Counter[str]]  # English word to its translations and their weights
Words = Callable[[str], list[str]]

#: Apertium's pairs: language, from which language, name.
_PAIRS = (
    ("es", "en", "eng-spa"),
    ("it", "es", "spa-ita"),
    ("pt", "es", "es-pt_BR"),
    ("fr", "es", "es-fr"),
)
_FREEDICT = {
    "nl": ("eng-nld", "nld-eng"),
    "pl": ("eng-pol", "pol-eng"),
    "ru": ("eng-rus",),
    "ja": ("eng-jpn",),
}
_STEMMERS = {"de": "german", "nl": "dutch", "pl": "polish", "ru": "russian"}
_WITHOUT_ARTICLES = {"pl", "ru", "zh", "ja"}
_ARTICLES = {"a", "an", "the"}
_SIF = 1e-4
_COVERED = 0.75  # share of a sentence's words, weighed by SIF, that must have translations
_LONGEST = 18  # words of a sentence
_CANDIDATES = 4
_CROWD = 10  # neighbours whose mean says how crowded a word's place is
_LEAST = 0.3  # weight of a translation, of the best one's
_TOGETHER = 0.15  # least cosine of words that occur in translations of one another
_FORMS = 0.5  # share of a word's weight that the other forms of its stem have
_STEMMED = 30_000  # words of a language whose stems are known
_WORD = re.compile(r"[^\W\d_]+")


def by_apertium(sentences: Sequence[str]) -> dict[str, list[str]]:
    """Return the translations of sentences in each language of ``_PAIRS``."""
    texts = {"en": [text if text[-1] in ".!?" else text + "." for text in sentences]}
    for language, origin, pair in _PAIRS:
        ran = subprocess.run(
            ["apertium", "-u", pair],
            input="\n".join(texts[origin]) + "\n",
            capture_output=True,
            check=True,
            encoding="utf-8",
        )
        texts[language] = ran.stdout.split("\n")[:-1]
        if len(texts[language]) != len(sentences):
            raise SystemExit(f"apertium {pair}: {len(texts[language])} lines, not {len(sentences)}")
    return {language: found for language, found in texts.items() if language != "en"}


def normalized(text: str) -> str:
    """Return a text as the tokenizer sees it."""
    return text.lower().replace("ß", "ss")


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(normalized(text))


def dictionary_entries(packages: Path, language: str) -> Iterator[tuple[str, str, float]]:
    """Yield an English word, a translation and its weight: less for later ones of an entry."""
    if language == "de":
        lines = (packages / "usr/share/trans/de-en").read_text(encoding="utf-8").split("\n")
        for line in lines:
            if " :: " in line and not line.startswith("#"):
                sides = [side.split("|") for side in line.split(" :: ", 1)]
                for german, english in zip(*sides, strict=False):
                    yield from paired(english, german)
    if language == "ru":
        for head, lines in entries(packages / "usr/share/dictd/mueller7"):
            russian = re.sub(r"[A-Za-z\[].*?(?=[а-я]|$)", ";", " ".join(lines).lower())
            yield from paired(head, russian)
    for name in _FREEDICT.get(language, ()):
        for head, lines in entries(packages / f"usr/share/dictd/freedict-{name}"):
            body = ";".join(lines[:3])
            yield from paired(head, body) if name.startswith("eng") else paired(body, head)


def entries(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the headword and the other lines of each entry of a file of dictd."""
    with gzip.open(path.with_suffix(".dict.dz")) as file:
        data = file.read()
    places = set()
    for line in path.with_suffix(".index").read_text(encoding="utf-8").split("\n")[:-1]:
        word, start, length = line.split("\t")[:3]
        if not word.startswith("00"):
            places.add((number(start), number(length)))
    for start, length in sorted(places):
        head, *lines = data[start : start + length].decode("utf-8", "replace").split("\n")
        yield head, lines


def number(digits: str) -> int:
    """Return a number that dictd writes in base 64."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    value = 0
    for digit in digits:
        value = 64 * value + alphabet.index(digit)
    return value


def paired(english: str, other: str) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of the single words on both sides of an entry."""
    for first, second in itertools.product(
        enumerate(single_words(english)), enumerate(single_words(other))
    ):
        yield first[1], second[1], 1 / (1 + first[0] + second[0])


def single_words(text: str) -> list[str]:
    """Return the fields of an entry that are one word, four at most."""
    text = re.sub(
        r"\([^)]*\)|\[[^\]]*\]|<[^>]*>|/[^/]*/|\{[^}]*\}|_\w+\.|\d+\)|\bto (?=\w)", "", text
    )
    fields = (field.strip(" .!?-") for field in re.split("[,;/]", normalized(text)))
    return [field for field in fields if _WORD.fullmatch(field)][:4]


def together(pairs: Sequence[tuple[str, str]], cut: Words) -> Iterator[tuple[str, str, float]]:
    """Yield words that occur in translations of one another, and the cosines of where they do."""
    first, english = incidence([words(pair[0]) for pair in pairs])
    second, others = incidence([cut(pair[1]) for pair in pairs])
    counts = (first.T @ second).tocoo()
    lengths = [np.sqrt(np.asarray(matrix.sum(axis=0)).ravel()) for matrix in (first, second)]
    cosines = (counts.data - 1) / (lengths[0][counts.row] * lengths[1][counts.col])
    kept = np.flatnonzero((counts.data > 1) & (cosines > _TOGETHER))
    for place in kept:
        yield english[counts.row[place]], others[counts.col[place]], float(cosines[place])


def incidence(texts: Sequence[list[str]]) -> tuple[sparse.csr_matrix, list[str]]:
    """Return the matrix (texts, words) of the words that texts have, and the words."""
    columns: dict[str, int] = {}
    places = [
        (row, columns.setdefault(word, len(columns)))
        for row, text in enumerate(texts)
        for word in set(text)
    ]
    rows, numbers = np.array(places).T
    ones = np.ones(len(places), np.float32)
    return sparse.csr_matrix((ones, (rows, numbers)), (len(texts), len(columns))), list(columns)


def neighbours(
    first: tuple[Sequence[str], np.ndarray], second: tuple[Sequence[str], np.ndarray]
) -> Iterator[tuple[str, str, float]]:
    """Yield the nearest words of two languages: by cosine, less for hubs (CSLS).

    Each language has words and their unit vectors.
    """
    cosines = first[1] @ second[1].T
    crowding = np.partition(cosines, -_CROWD, axis=0)[-_CROWD:].mean(0)
    for word, line in zip(first[0], cosines, strict=True):
        scores = 2 * line - np.partition(line, -_CROWD)[-_CROWD:].mean() - crowding
        for place in np.argpartition(scores, -_CANDIDATES)[-_CANDIDATES:]:
            if scores[place] > _TOGETHER:
                yield word, second[0][place], float(scores[place])


def lexicon(language: str, sources: Iterable[Iterable[tuple[str, str, float]]]) -> Lexicon:
    """Return the translations of words, each source with the same weight.

    A word that is English, or that the language does not use, translates none.
    """
    known, english = get_frequency_dict(language), get_frequency_dict("en")
    known = {normalized(word): frequency for word, frequency in known.items()}
    found: Lexicon = defaultdict(Counter)
    for source in sources:
        entries: Lexicon = defaultdict(Counter)
        for word, translation, weight in source:
            frequency = known.get(translation, 1e-8 if language == "ja" else 0)
            if frequency and not (word == translation and english.get(word, 0) > 3 * frequency):
                entries[word][translation] += weight * frequency**0.3
        for word, translations in entries.items():
            total = sum(translations.values())
            for translation, weight in translations.items():
                found[word][translation] += weight / total
    if language in _WITHOUT_ARTICLES:
        for article in _ARTICLES:
            found.pop(article, None)
    return found


def forms(language: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the stem of each frequent word, and the words of each stem."""
    if language not in _STEMMERS:
        return {}, {}
    stemmer = snowballstemmer.stemmer(_STEMMERS[language])
    frequent = [normalized(word) for word in top_n_list(language, _STEMMED)]
    stems = dict(zip(frequent, stemmer.stemWords(frequent), strict=True))
    families: dict[str, list[str]] = defaultdict(list)
    for word, stem in stems.items():
        families[stem].append(word)
    return stems, families


def word_by_word(
    sentences: Sequence[str], language: str, found: Lexicon, count: int, draw: np.random.Generator
) -> dict[int, str]:
    """Return translations of ``count`` sentences drawn at random, by their places."""
    frequencies, known = get_frequency_dict("en"), get_frequency_dict(language)
    stems, families = forms(language)
    choices = {
        word: choice(translations, stems, families, known) for word, translations in found.items()
    }
    space = "" if language in {"zh", "ja"} else " "
    translated: dict[int, str] = {}
    for place in draw.permutation(len(sentences)):
        originals = words(sentences[place])
        if language in _WITHOUT_ARTICLES:
            originals = [word for word in originals if word not in _ARTICLES]
        if not 2 < len(originals) <= _LONGEST:
            continue
        weights = np.array([_SIF / (_SIF + frequencies.get(word, 1e-6)) for word in originals])
        covered = np.array([word in choices for word in originals])
        if weights[covered].sum() >= _COVERED * weights.sum():
            drawn = [
                names[np.searchsorted(chances, draw.random() * chances[-1])]
                for names, chances in (choices[word] for word in originals if word in choices)
            ]
            translated[int(place)] = space.join(drawn)
        if len(translated) == count:
            break
    return translated


def choice(
    translations: Counter[str],
    stems: dict[str, str],
    families: dict[str, list[str]],
    known: dict[str, float],
) -> tuple[list[str], np.ndarray]:
    """Return the best translations with their forms, and the sums of their chances."""
    best = translations.most_common(_CANDIDATES)
    chances: Counter[str] = Counter()
    for word, weight in best:
        if weight < _LEAST * best[0][1]:
            continue
        others = [form for form in families.get(stems.get(word, ""), ()) if form != word]
        roots = np.array([known.get(form, 1e-8) ** 0.5 for form in others])
        chances[word] += weight**2 * (1 - _FORMS if others else 1)
        for form, root in zip(others, roots, strict=True):
            chances[form] += weight**2 * _FORMS * root / roots.sum()
    return list(chances), np.cumsum(list(chances.values()))
