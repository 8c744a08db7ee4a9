"""The pages of the site, for mkdocs (``make site``): the repository's own, unchanged.

Each page keeps its path, so that links between pages work. If a page links to another kind of
file, such as a program or the licence, that file gets a page. The pages of the library list the
names in ``promptcli/__init__.pyi``.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/*.md",
    "docs/*.md",
    "docs/plugins/*.md",
    "promptcli/shipped/*/README.md",
)
PICTURES = ("docs/pictures/*.png", "results/*.png")
#: Records and references contain nearly every word, so the search leaves them out, with the texts
#: and programs that pages link to.
UNSEARCHED = ("cli.md", "log.md", "results.md", "CHANGELOG.md")
#: The guides come before the library's pages, the benchmarks and the models' cards.
GUIDES = ("README.md", "docs/")
STYLE = "docs/site.css"
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^from \.((?:plugins\.)?(\w+)\S*) import (\w+)", re.MULTILINE)

#: A page of the library: its title, and the packages whose public names it shows.
LIBRARY = {
    "encode": ("Encode", ("encoder", "recipe", "embedding", "data")),
    "models": ("Models", ("models",)),
    "search": ("Search and serve", ("retrieval", "serve")),
    "evaluate": ("Evaluate and analyse", ("evaluation", "analyze", "papers")),
    "train": ("Train", ("training", "select", "tune", "pretrain", "domain")),
    "errors": ("Errors", ("errors",)),
}
#: Base classes for other packages (docs/extending.md).
BASES = (
    "promptcli.encoder.components.Prompt",
    "promptcli.encoder.template.Template",
    "promptcli.encoder.components.Weights",
    "promptcli.encoder.components.Transform",
    "promptcli.training.methods.method.Method",
    "promptcli.training.objective.Objective",
    "promptcli.data.task_table.TaskRow",
    "promptcli.data.vectors.formats.VectorFormat",
    "promptcli.backbones.families.Family",
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the library's pages into the navigation, at its entry ``Library``."""
    *_, reference = config.nav
    for entry in reference["Reference"]:
        if entry == {"Library": "API"}:
            entry["Library"] = list(library_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by the repository's pages and pictures."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    pages = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    shown = [path for pattern in PICTURES for path in ROOT.glob(pattern)]
    kept = [*pages, *shown, ROOT / STYLE]
    made = {**library_pages(), "examples/README.md": examples_page()}
    texts = linked_texts(pages)
    listed = [*of_theme]
    for path in kept:
        listed.append(File(name_of(path), str(ROOT), config.site_dir, use_directory_urls=False))
    for name, text in made.items():
        listed.append(File.generated(config, name, content=text))
    for path in texts:
        name = f"{name_of(path)}.md"
        unlisted = InclusionLevel.NOT_IN_NAV
        listed.append(File.generated(config, name, content=text_page(path), inclusion=unlisted))
    return Files(listed)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to texts and folders at their pages, show masks and bars literally, and leave
    records out of the search.
    """
    page.meta["search"] = search_settings(page.file.src_uri)
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # which would hold this page only
    here = (ROOT / page.file.src_uri).parent

    def point(link: re.Match[str]) -> str:
        target = (here / link[1]).resolve()
        for page_name in (f"{link[1]}.md", f"{link[1]}/README.md"):
            is_page = files.get_file_from_path(name_of(here / page_name))
            if target.exists() and is_page:
                return f"]({page_name}{link[2] or ''})"
        return link[0]

    parts = CODE.split(LINK.sub(point, markdown))
    parts[::2] = [prose.replace("[MASK]", r"\[MASK\]") for prose in parts[::2]]
    # GitHub needs the backslash in a table's code, Python-Markdown would show it
    parts[1::2] = [code.replace(r"\|", "|") for code in parts[1::2]]
    return "".join(parts)


def search_settings(name: str) -> dict[str, object]:
    """Return the search's settings of a page: excluded, or the weight of its words."""
    path = Path(name)
    is_text = path.stem in ("LICENSE", "NOTICE") or "." in path.stem
    if path.name in UNSEARCHED or is_text:
        return {"exclude": True}
    return {"boost": 2 if name.startswith(GUIDES) else 1}


def name_of(path: Path) -> str:
    """Return a file's path in the repository."""
    return os.path.relpath(path, ROOT)


def linked_texts(pages: list[Path]) -> list[Path]:
    """Return the files of the repository that pages link to, without pages and pictures."""
    found = set()
    for page in pages:
        for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT):
                found.add(path)
    return sorted(path for path in found if path.suffix not in (".md", ".png"))


def text_page(path: Path) -> str:
    """Return the page of a text: its name and its content."""
    kind = {".py": "python", ".sh": "sh", ".toml": "toml"}.get(path.suffix, "text")
    return f"# {path.name}\n\n{block(path, kind)}"


def block(path: Path, kind: str) -> str:
    """Return a file as a block of code."""
    return f"`````{kind}\n{path.read_text(encoding='utf-8').rstrip()}\n`````\n"


def examples_page() -> str:
    """Return the page of the programs in ``examples``."""
    parts = ["# Examples\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {path.name}\n\n{block(path, 'python')}")
    return "\n".join(parts)


def library_pages() -> dict[str, str]:
    """Return the library's pages by name: every public name with its docstring."""
    exports = EXPORT.findall((ROOT / "promptcli" / "__init__.pyi").read_text(encoding="utf-8"))
    pages = {}
    for name, (title, packages) in LIBRARY.items():
        shown = []
        for wanted in packages:
            shown += [
                f"promptcli.{module}.{export}"
                for module, package, export in exports
                if package == wanted
            ]
        pages[f"api/{name}.md"] = library_page(title, shown)
    pages["api/extend.md"] = library_page("Base classes for extensions", BASES)
    return pages


def library_page(title: str, names: Iterable[str]) -> str:
    """Return a page of the docstrings of names."""
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)])
