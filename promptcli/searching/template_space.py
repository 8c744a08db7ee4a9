"""The candidates of a template search as texts: the greedy search's pieces, a grammar's templates, a user's file."""

import itertools
import json
import math
import random
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promptcli.data.dialect import Fields
from promptcli.data.rows import open_rows
from promptcli.encoder.prompts.named import NamedTemplate, templates_folder
from promptcli.encoder.prompts.template import check_template, text_rule, with_period
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.recipe import MASK, SLOT, Recipe, last_part
from promptcli.storage.documents import convert, read_document

_SLOT_NAME = re.compile(r"<([a-z]+)>")
_MOST = 1_000_000  #: most templates of a grammar; the packaged one has thousands


@dataclass(frozen=True)
class Candidate:
    """The table of a template in a file of candidates."""

    text: str


@dataclass(frozen=True)
class Grammar:
    """Patterns, and the fillings of each ``<name>`` in them."""

    patterns: list[str]
    slots: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class GrammarFile:
    """A file of candidates that is a grammar."""

    grammar: Grammar


@dataclass(frozen=True)
class GreedySpace:
    """The pieces of the greedy search (PromptBERT, section 4.2); a template is prefix, relation, ending."""

    start: str  #: the prefix of the first stage, ``[X]`` alone
    relations: tuple[str, ...]  #: candidates of the first stage, without any prefix; empty is a candidate
    prefixes: tuple[str, ...]  #: candidates of the second stage, with [X]
    ending: str  #: after the relation, with [MASK]

    def template(self, prefix: str, relation: str) -> str:
        """Return the template of a prefix and a relation, one space between its parts."""
        return " ".join(part for part in (prefix, relation, self.ending) if part)

    def extended(self, relations: Iterable[str] = (), prefixes: Iterable[str] = ()) -> "GreedySpace":
        more = {"relation": [word.strip() for word in relations], "prefix": [prefix.strip() for prefix in prefixes]}
        for kind, texts in more.items():
            for text in texts:
                if MASK in text or text.count(SLOT) != (kind == "prefix"):
                    allowed = f"one {SLOT}" if kind == "prefix" else f"words, no {SLOT}"
                    raise UsageError(f"{kind} {text!r} is not allowed; write it with {allowed} and no {MASK}")
        return replace(
            self,
            relations=tuple(dict.fromkeys((*self.relations, *more["relation"]))),
            prefixes=tuple(dict.fromkeys((*self.prefixes, *more["prefix"]))),
        )


def greedy_space() -> GreedySpace:
    """Return the paper's candidates, in its order."""
    return convert(_packaged()["greedy"], GreedySpace)


def published_scores(backbone: str, task: str) -> Mapping[str, float]:
    """Return the published figure of each template for a backbone, by the last part of its name, and a task."""
    tables = {(table["backbone"], table["task"]): table["scores"] for table in _packaged()["published"]}
    scores: dict[str, float] = tables.get((last_part(backbone), task), {})
    return scores


def published_templates() -> list[str]:
    """Return the paper's templates of the greedy search, in its order."""
    return list(dict.fromkeys(text for table in _packaged()["published"] for text in table["scores"]))


def grammar_templates() -> list[str]:
    """Return every template of the packaged grammar, each text once."""
    return _expand(convert(_packaged()["grammar"], Grammar), "templates/search.toml")


def draw(templates: Sequence[str], limit: int, seed: int, always: Sequence[str] = ()) -> list[str]:
    """Return at most ``limit`` templates: those of ``always``, then others drawn by a seed."""
    rest = [text for text in templates if text not in set(always)]
    room = max(0, limit - len(always))
    return [*always, *(rest if len(rest) <= room else random.Random(seed).sample(rest, room))]


def read_candidates(path: Path) -> list[str]:
    """Read the templates of a file, each text once, in its order.

    A ``.toml`` file has tables as in ``templates/named.toml``, or a ``[grammar]`` as in ``templates/search.toml``; any
    other file has one template a line.
    """
    hint = f"write tables with text = '{SLOT} means {MASK} .', or a [grammar] as in templates/search.toml"
    if path.suffix == ".toml":
        tables = read_document(path, dict[str, Any], hint=hint, error=UsageError)
        if "grammar" in tables:
            grammar = read_document(path, GrammarFile, hint=hint, error=UsageError).grammar
            templates = _expand(grammar, str(path))
        else:
            rows = read_document(path, dict[str, Candidate], hint=hint, error=UsageError)
            templates = [row.text for row in rows.values()]
    else:
        with open_rows(path, Fields(remedy=""), skip_blank=True) as lines:
            templates = [line.strip() for line in lines.texts()]
    distinct = check_candidates(templates, str(path))
    if len(distinct) < len(templates):
        note(f"{path}: {len(templates) - len(distinct)} templates are repeated; each is tried once")
    return distinct


def demonstrations(pairs: Iterable[tuple[str, str]], recipe: Recipe) -> list[str]:
    """Return a recipe's template with one example in front of it, one template for each (word, text that it sums up).

    The example is written as the evaluation writes a sentence, the word with a capital and closed by a quotation mark
    and a full stop: ``This sentence : "meat from a deer." means in one word:"Venison".This sentence : "[X]" ...``.

    Example:
        >>> demonstrations([("rain", "water that falls")], Recipe(prompt='"[X]" is:"'))
        ['"water that falls." is:"Rain"."[X]" is:"']
    """
    rule, texts = text_rule(recipe.text_rule), []
    for word, text in pairs:
        if SLOT in word + text:
            raise UsageError(f"demonstration {word!r}: {text!r} has {SLOT}, the place of the sentence; leave it out")
        example = recipe.prompt.replace(SLOT, rule.change(with_period(text)))
        texts.append(f'{example}{word[:1].upper()}{word[1:]}".{recipe.prompt}')
    return list(dict.fromkeys(texts))


def template_file(templates: Mapping[str, NamedTemplate]) -> str:
    """Return templates as TOML in the form of ``templates/named.toml``."""
    lines = ["# Found by promptcli search-templates; score: Spearman x 100 on the set it was chosen by.", ""]
    for name, row in templates.items():
        # a JSON string is a TOML string, and a name may hold a dot
        text, source = (json.dumps(value, ensure_ascii=False) for value in (row.text, row.source))
        lines += [f"[{json.dumps(name)}]", f"text = {text}", f"source = {source}"]
        lines += ["" if row.score is None else f"score = {row.score:.2f}\n"]
    return "\n".join(lines)


def check_candidates(texts: Sequence[str], source: str) -> list[str]:
    """Return the templates, each text once, in their order; ``source`` is their origin, for the message."""
    if not texts:
        raise UsageError(f"{source} holds no candidate; give one template a line, e.g. {SLOT} means {MASK} .")
    for number, text in enumerate(texts, 1):
        try:
            check_template(text)
            if MASK not in text:
                raise UsageError(f"template {text!r} has no {MASK}; it needs exactly one")
        except UsageError as error:
            raise UsageError(f"{source}, candidate {number}: {error}") from None
    return list(dict.fromkeys(texts))


def _expand(grammar: Grammar, source: str) -> list[str]:
    templates: dict[str, None] = {}
    for pattern in grammar.patterns:
        names = list(dict.fromkeys(_SLOT_NAME.findall(pattern)))
        for name in names:
            if name not in grammar.slots:
                raise UsageError(f"the grammar of {source} lacks {name!r}; give its fillings under `slots`")
        if math.prod(len(grammar.slots[name]) for name in names) > _MOST:
            raise UsageError(f"{source}: {pattern!r} gives more than {_MOST:,} templates; leave fillings out")
        for fillings in itertools.product(*(grammar.slots[name] for name in names)):
            chosen = dict(zip(names, fillings, strict=True))
            filled = _SLOT_NAME.sub(lambda match: chosen[match[1]], pattern)  # noqa: B023 - called at once
            templates[" ".join(filled.split())] = None
    return list(templates)


def _packaged() -> dict[str, Any]:
    with (templates_folder() / "search.toml").open("rb") as file:
        return tomllib.load(file)
