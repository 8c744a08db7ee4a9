"""Sort messages by topic after four examples of each: an encoder and scikit-learn's logistic
regression.

python few_labels.py  (pip install scikit-learn)
"""

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import promptcli as pc

LABELLED = {
    "delivery": [
        "My parcel has not arrived yet.",
        "The package was left at the wrong house.",
        "When will my order be shipped?",
        "The courier never rang the bell.",
    ],
    "payment": [
        "I was charged twice for one order.",
        "My credit card was declined.",
        "Please send me the invoice.",
        "I have not received my refund.",
    ],
    "account": [
        "I forgot my password.",
        "How do I change my email address?",
        "I cannot log in any more.",
        "Please delete my profile.",
    ],
}
NEW = [
    "The driver delivered the box to my neighbour.",
    "My card was charged two times.",
    "The site says that my user name is unknown.",
]


def main() -> None:
    """Fit on the labelled messages and print a label, and its probability, for each new one."""
    texts = [text for examples in LABELLED.values() for text in examples]
    labels = [label for label, examples in LABELLED.items() for _ in examples]
    model = make_pipeline(pc.load("mini"), LogisticRegression(C=10)).fit(texts, labels)
    for text, label, shares in zip(NEW, model.predict(NEW), model.predict_proba(NEW), strict=True):
        print(f"{label:10}{max(shares):.2f}  {text}")


if __name__ == "__main__":
    main()
