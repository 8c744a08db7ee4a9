"""What to cite for a trained model: the papers of the methods, as BibTeX (docs/cite.md)."""

from dataclasses import dataclass

import promptcli


@dataclass(frozen=True)
class Paper:
    """One paper."""

    key: str
    title: str
    authors: str  #: as BibTeX separates them
    year: int
    venue: str | None = None  #: None: a preprint
    eprint: str | None = None  #: number at arXiv
    doi: str | None = None

    def bibtex(self) -> str:
        """Return its entry."""
        fields = {"title": f"{{{self.title}}}", "author": self.authors, "year": str(self.year)}
        if self.venue is not None:
            fields["booktitle"] = self.venue
        if self.doi is not None:
            fields["doi"] = self.doi
        if self.eprint is not None:
            fields["eprint"] = self.eprint
            fields["archivePrefix"] = "arXiv"
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
        kind = "misc" if self.venue is None else "inproceedings"
        return "\n".join([f"@{kind}{{{self.key},", *lines, "}"])


_SBERT = Paper(
    "reimers-gurevych-2019-sbert",
    "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
    "Reimers, Nils and Gurevych, Iryna",
    2019,
    "EMNLP-IJCNLP",
    "1908.10084",
)
_DCPCSE = Paper(
    "jiang-wang-2022-dcpcse",
    "Deep Continuous Prompt for Contrastive Learning of Sentence Embeddings",
    "Jiang, Yuxin and Wang, Wei",
    2022,
    eprint="2203.06875v1",
)
_OPTIPROMPT = Paper(
    "zhong-etal-2021-optiprompt",
    "Factual Probing Is [MASK]: Learning vs. Learning to Recall",
    "Zhong, Zexuan and Friedman, Dan and Chen, Danqi",
    2021,
    "NAACL",
    "2104.05240",
)

#: Paper of each method, by the method's name; ``distill`` has none.
PAPERS: dict[str, Paper] = {
    "promptbert": Paper(
        "jiang-etal-2022-promptbert",
        "PromptBERT: Improving BERT Sentence Embeddings with Prompts",
        "Jiang, Ting and Jiao, Jian and Huang, Shaohan and Zhang, Zihan and Wang, Deqing and"
        " Zhuang, Fuzhen and Wei, Furu and Huang, Haizhen and Deng, Denvy and Zhang, Qi",
        2022,
        "EMNLP",
        doi="10.18653/v1/2022.emnlp-main.603",
    ),
    "dcpcse": _DCPCSE,
    "scpcse": _DCPCSE,
    "promcse": Paper(
        "jiang-etal-2022-promcse",
        "Improved Universal Sentence Embeddings with Prompt-based Contrastive Learning and"
        " Energy-based Learning",
        "Jiang, Yuxin and Zhang, Linhai and Wang, Wei",
        2022,
        "Findings of EMNLP",
        "2203.06875",
    ),
    "optiprompt": _OPTIPROMPT,
    "simcse": Paper(
        "gao-etal-2021-simcse",
        "SimCSE: Simple Contrastive Learning of Sentence Embeddings",
        "Gao, Tianyu and Yao, Xingcheng and Chen, Danqi",
        2021,
        "EMNLP",
        "2104.08821",
    ),
    "sncse": Paper(
        "wang-etal-2022-sncse",
        "SNCSE: Contrastive Learning for Unsupervised Sentence Embedding with Soft Negative"
        " Samples",
        "Wang, Hao and others",
        2022,
        eprint="2201.05979",
    ),
    "cotbert": Paper(
        "zhang-etal-2024-cotbert",
        "CoT-BERT: Enhancing Unsupervised Sentence Representation through Chain-of-Thought",
        "Zhang, Bowen and others",
        2024,
        "ICANN",
        "2309.11143",
    ),
    "rankcse": Paper(
        "liu-etal-2023-rankcse",
        "RankCSE: Unsupervised Sentence Representations Learning via Learning to Rank",
        "Liu, Jiduan and others",
        2023,
        "ACL",
        "2305.16726",
    ),
    "denosent": Paper(
        "wang-etal-2024-denosent",
        "DenoSent: A Denoising Objective for Self-Supervised Sentence Representation Learning",
        "Wang, Xinghao and others",
        2024,
        "AAAI",
        "2401.13621",
    ),
    "consert": Paper(
        "yan-etal-2021-consert",
        "ConSERT: A Contrastive Framework for Self-Supervised Sentence Representation Transfer",
        "Yan, Yuanmeng and others",
        2021,
        "ACL",
        "2105.11741",
    ),
    "isbert": Paper(
        "zhang-etal-2020-isbert",
        "An Unsupervised Sentence Embedding Method by Mutual Information Maximization",
        "Zhang, Yan and others",
        2020,
        "EMNLP",
        "2009.12061",
    ),
    "defsent": Paper(
        "tsukagoshi-etal-2021-defsent",
        "DefSent: Sentence Embeddings using Definition Sentences",
        "Tsukagoshi, Hayato and Sasano, Ryohei and Takeda, Koichi",
        2021,
        "ACL",
        "2105.04339",
    ),
    "sbert": _SBERT,
    "sbert-regression": _SBERT,
    "prompteol": Paper(
        "jiang-etal-2024-prompteol",
        "Scaling Sentence Embeddings with Large Language Models",
        "Jiang, Ting and others",
        2024,
        "Findings of EMNLP",
        "2307.16645",
    ),
    "cse-sfp": Paper(
        "zhang-etal-2025-csesfp",
        "CSE-SFP: Enabling Unsupervised Sentence Representation Learning via a Single Forward Pass",
        "Zhang, Bowen and others",
        2025,
        "SIGIR",
        "2505.00389",
    ),
    "pcc-tuning": Paper(
        "zhang-li-2024-pcctuning",
        "Pcc-tuning: Breaking the Contrastive Learning Ceiling in Semantic Textual Similarity",
        "Zhang, Bowen and Li, Chunping",
        2024,
        "EMNLP",
        "2406.09790",
    ),
}


def bibtex(method: str) -> str:
    """Return the entries to cite for a model trained by a method: its paper's, and promptcli's."""
    entries = []
    if method in PAPERS:
        entries.append(PAPERS[method].bibtex())
    program = [
        "@software{promptcli,",
        "  title = {promptcli},",
        "  author = {{The promptcli authors}},",
        f"  version = {{{promptcli.__version__}}},",
        "  license = {Apache-2.0},",
        "}",
    ]
    return "\n\n".join([*entries, "\n".join(program)])
