"""Candidates that a model writes: ``search-templates --generate mlm|t5``. Part of the entrance."""

from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.cli.commands.search_templates_options import Space
from promptcli.cli.console import note, progress
from promptcli.cli.opening import announcer
from promptcli.cli.options import Runtime
from promptcli.errors import UsageError, unknown

if TYPE_CHECKING:
    from promptcli.searching.template_scorer import TemplateScorer


def generate(space: Space, scorer: "TemplateScorer", runtime: Runtime) -> list[str]:
    """Return the templates that the named generator writes for a backbone.

    Raises:
        UsageError: No such generator, T5 without its name, or a backbone that cannot write.
        NotFoundError: The T5 or the file of pairs is not there.
    """
    if space.generate not in GENERATORS:
        raise unknown("generator", str(space.generate), GENERATORS)
    return GENERATORS[space.generate](space, scorer, runtime)


def _mlm(space: Space, scorer: "TemplateScorer", runtime: Runtime) -> list[str]:
    from promptcli.searching import generate_mlm

    pairs = scorer.task.pairs()
    with progress("generate", generate_mlm.steps(), quiet=runtime.quiet) as advance:
        return generate_mlm.generate_templates(
            scorer.backbone, [*pairs.first, *pairs.second], count=space.beam, progress=advance
        )


def _t5(space: Space, scorer: "TemplateScorer", runtime: Runtime) -> list[str]:
    from promptcli.backbones.devices import choose_device
    from promptcli.backbones.t5 import load_t5
    from promptcli.searching import generate_t5

    if space.t5 is None:
        raise UsageError(
            "--generate t5 needs --t5 NAME, e.g. google/t5-v1_1-base, or a folder; --generate mlm needs none"
        )
    file = generate_t5.DEMO if space.pairs is None else Path(space.pairs)
    if space.pairs is None:
        note("assumed: 60 (word, definition) pairs of our own; others: --pairs FILE", quiet=runtime.quiet)
    definitions = generate_t5.choose_definitions(generate_t5.read_definitions(file), scorer.backbone.tokenizer)
    t5 = load_t5(
        space.t5,
        device=choose_device(runtime.device),
        offline=runtime.offline,
        announce=announcer(runtime),
    )
    with progress("generate", generate_t5.steps(), quiet=runtime.quiet) as advance:
        return generate_t5.generate_templates(t5, definitions, beam=space.beam, progress=advance)


#: Generator -> how it writes.
GENERATORS = {"mlm": _mlm, "t5": _t5}
