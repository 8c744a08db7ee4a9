"""Every learning-free recipe with every linear transform: some corpora to fit on, two development
sets to choose by.

python benchmarks/transforms.py --data-dir SENTEVAL --corpora wiki.txt,nli.tsv,wordnet.txt >
transforms.jsonl

One JSON line a recipe, corpus, transform and development set: what was chosen and its figure there;
its figures on the test sets, their mean and its 95% interval; those without the transform. They are
the figures of `promptcli fit --model R --transform T --on CORPUS --select SET` and `promptcli
eval`, from vectors made once.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import torch

from promptcli.backbones.by_name import load_backbone
from promptcli.data.tasks import graded_task_names, load_graded_tasks
from promptcli.data.training_data import fitting_sentences
from promptcli.encoder.encoder import build_encoder, encode_together
from promptcli.encoder.transforms import build_transforms
from promptcli.encoder.transforms.principal_axes import (
    AllButTheTop,
    Spectral,
    Whitening,
)
from promptcli.errors import WrongKindError
from promptcli.evaluation import statistics
from promptcli.grammar import parse_transform
from promptcli.recipe import RECIPES
from promptcli.training.fitting import CANDIDATES, fit_recipe

DEVELOPMENT = ("STS-B:dev", "demo:dev")
TESTS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")


def figures(vectors, tests, others, row_of):
    """Return Spearman x 100 of each task, the mean of the tests, and the half width of its 95%
    interval.
    """
    cosines, gold, found = [], [], {}
    for task in [*tests, *others]:
        pairs = task.pairs()
        first, second = (
            [row_of[sentence] for sentence in side] for side in (pairs.first, pairs.second)
        )
        cosines.append(statistics.cosine(vectors[first], vectors[second]))
        gold.append(pairs.gold)
        found[task.label] = round(100 * statistics.spearman(cosines[-1], gold[-1]), 2)
    count = len(tests)
    if not tests:
        return found
    ((low, high),) = statistics.average_intervals(
        [row[None] for row in cosines[:count]], gold[:count]
    )
    mean = round(float(np.mean([found[task.label] for task in tests])), 2)
    return {**found, "mean": mean, "half": round(50 * (high - low), 2)}


def apply(spec, vectors, backbone, tensors):
    """Return the vectors after a transform."""
    made = torch.from_numpy(vectors)
    for transform in build_transforms([parse_transform(spec)], backbone, tensors):
        for _, step in transform.stages:
            made = step(made)
    return made.numpy()


def chosen(name, vectors, task, row_of, backbone, tensors):
    """Return the candidate that is best on a development set, and its figure there."""
    found = {}
    for spec in CANDIDATES[name](vectors.shape[1]):
        found[spec] = figures(apply(spec, vectors, backbone, tensors), [], [task], row_of)[
            task.label
        ]
    best = max(found, key=found.get)
    return best, found[best]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--corpora", required=True, help="files of sentences, parted by commas")
    parser.add_argument("--backbone", default="mini-bert")
    parser.add_argument(
        "--recipes", default=",".join(name for name in RECIPES if name not in ("whitening", "flow"))
    )
    arguments = parser.parse_args()

    corpora = {Path(name).stem: fitting_sentences(name) for name in arguments.corpora.split(",")}
    loaded = load_graded_tasks(
        arguments.data_dir, graded_task_names([*TESTS, *DEVELOPMENT, "demo"]), "senteval"
    ).tasks
    tests = [task for task in loaded if task.label in TESTS]
    others = [task for task in loaded if task.label not in TESTS]
    texts = [text for part in corpora.values() for text in part] + [
        s for task in loaded for s in task.sentences()
    ]
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}

    encoders, backbone = {}, load_backbone(arguments.backbone)
    for name, corpus in itertools.product(arguments.recipes.split(","), corpora):
        recipe = RECIPES[name].replace(backbone=arguments.backbone)
        if "tfidf" in recipe.pooling:
            encoders[name, corpus] = fit_recipe(recipe, corpora[corpus], backbone=backbone).encoder
        else:
            first = encoders.get((name, next(iter(corpora))))
            try:
                encoders[name, corpus] = first or build_encoder(
                    recipe, backbone=backbone, dtype="stored"
                )
            except WrongKindError:  # of causal models
                continue
    distinct = list({id(encoder): encoder for encoder in encoders.values()}.values())
    encoded = encode_together(distinct, list(row_of))
    made = {id(encoder): rows.vectors for encoder, rows in zip(distinct, encoded, strict=True)}
    for (name, corpus), encoder in encoders.items():
        vectors = made[id(encoder)]
        own = vectors[[row_of[sentence] for sentence in corpora[corpus]]]
        tensors = {**Whitening.fit(own), **AllButTheTop.fit(own), **Spectral.fit(own)}
        plain = figures(vectors, tests, others, row_of)
        print(
            json.dumps({"recipe": name, "corpus": corpus, "transform": None, "test": plain}),
            flush=True,
        )
        for transform, task in itertools.product(CANDIDATES, others):
            if task.label in DEVELOPMENT and (
                transform in tensors_of(tensors) or corpus == next(iter(corpora))
            ):
                best, value = chosen(transform, vectors, task, row_of, backbone, tensors)
                row = {
                    "recipe": name,
                    "corpus": corpus,
                    "transform": transform,
                    "by": task.label,
                    "chosen": best,
                }
                test = figures(apply(best, vectors, backbone, tensors), tests, others, row_of)
                print(json.dumps({**row, "value": value, "test": test}), flush=True)


def tensors_of(tensors):
    """Return the transforms that have fitted numbers.

    Of the others one corpus is as good as another.
    """
    return {name.partition(".")[0] for name in tensors}


if __name__ == "__main__":
    main()
