"""Does a backbone that never saw dropout lose under SimCSE? Same training, several backbones, one
table.

    python benchmarks/dropout_views.py CORPUS DATA_DIR --backbones mini-bert,FOLDER [--steps 150]
    [--seeds 0]

Unsupervised SimCSE in its plainest form (two dropout views of a sentence, InfoNCE at temperature
0.05, dense+tanh head while training): 128 sentences a step, [CLS] at learning rate 1e-4 and the
last layer's mean at 2e-5, linear decay. Figures: Spearman x 100 on the STS-B development set,
before and after. A diagnosis, not the tool's own training.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from promptcli.backbones.names import SHIPPED_BACKBONES
from promptcli.data.senteval import tasks_from
from promptcli.data.training_data import development_task
from promptcli.encoder.encoder import build_encoder
from promptcli.evaluation.evaluator import score_encoders
from promptcli.recipe import Recipe

BATCH = 128
LENGTH = 32
TEMPERATURE = 0.05
#: Pooling of the recipe -> learning rate.
RUNS = {"last/cls": 1e-4, "last/avg": 2e-5}


def score(folder, pooling, task):
    encoder = build_encoder(Recipe(backbone=str(folder), pooling=pooling), dtype="float32")
    return score_encoders([encoder], [task])[0].value


def pool(states, attention, pooling):
    if pooling == "last/cls":
        return states[:, 0]
    weights = attention.unsqueeze(-1)
    return (states * weights).sum(1) / weights.sum(1)


def train(folder, target, pooling, lines, steps, seed):
    """Train a copy of the backbone; save it with its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).train()
    width = model.config.hidden_size
    head = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh())
    parameters = [*model.base_model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RUNS[pooling], weight_decay=0.0)
    chosen = random.Random(seed).sample(lines, steps * BATCH)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RUNS[pooling] * (1 - step / steps)
        batch = chosen[step * BATCH : (step + 1) * BATCH]
        inputs = tokenizer(
            batch * 2, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = model.base_model(**inputs).last_hidden_state
            vectors = head(pool(states, inputs["attention_mask"], pooling)).float()
        first, second = torch.nn.functional.normalize(vectors, dim=1).chunk(2)
        loss = torch.nn.functional.cross_entropy(
            first @ second.T / TEMPERATURE, torch.arange(BATCH)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    model.eval().save_pretrained(target)
    tokenizer.save_pretrained(target)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--backbones", default="mini-bert")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", default="0")
    arguments = parser.parse_args()
    lines = [
        line.strip()
        for line in arguments.corpus.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    with tasks_from(arguments.data_dir):
        task = development_task("STS-B:dev")
    for name in arguments.backbones.split(","):
        folder = SHIPPED_BACKBONES.get(name, Path(name))
        for pooling in RUNS:
            before = score(folder, pooling, task)
            for seed in map(int, arguments.seeds.split(",")):
                with tempfile.TemporaryDirectory() as target:
                    train(folder, target, pooling, lines, arguments.steps, seed)
                    after = score(target, pooling, task)
                row = {
                    "backbone": name,
                    "pooling": pooling,
                    "seed": seed,
                    "before": before,
                    "after": after,
                }
                print(
                    json.dumps(
                        {
                            key: round(value, 2) if isinstance(value, float) else value
                            for key, value in row.items()
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
