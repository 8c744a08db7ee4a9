"""Ditto's first table in small: its learning-free rows on the shipped model and demo pairs, next to
the published ones.

python paper_table.py  (no network; `promptcli reproduce ditto/1 --data-dir FOLDER` measures the
table itself)
"""

import promptcli as pc

#: Average of the seven STS tasks with bert-base-uncased, Spearman x 100 (Chen et al., 2023, table
#: 1).
PUBLISHED = {
    "static-avg": 56.02,
    "last-avg": 52.57,
    "first-last-avg": 56.70,
    "static-ditto": 61.77,
    "last-ditto": 59.07,
    "first-last-ditto": 64.77,
}


def main() -> None:
    """Print a row for each recipe: measured on the demo pairs, with half of the 95% interval, and
    published.
    """
    print(f"{'':18}{'mini-bert, demo':>18}{'BERT-base, STS':>18}")
    for recipe, published in PUBLISHED.items():
        [score] = pc.evaluate(recipe, tasks=["demo"])
        half = (score.ci95[1] - score.ci95[0]) / 2
        print(f"{recipe:18}{score.value:>11.2f} ±{half:.2f}{published:>18.2f}")


if __name__ == "__main__":
    main()
