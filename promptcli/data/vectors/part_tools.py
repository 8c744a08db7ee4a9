"""What is done with a folder of vectors in parts: looked over, merged, sampled. One block is held."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from promptcli.data.input_files import check_unchanged, is_remote
from promptcli.data.tables import Record
from promptcli.data.vectors import kind_of, manifest_path, open_sink, output_of
from promptcli.data.vectors.part_folder import (
    MANIFEST,
    PLAN,
    PartFolder,
    Plan,
    about_part,
    check_follows,
    part_name,
    read_blocks,
    read_plan,
)
from promptcli.errors import CheckFailedError, PromptcliError, UsageError
from promptcli.storage.documents import to_json
from promptcli.storage.files import sha256
from promptcli.storage.parts import replace_with_sidecar

_PART = re.compile(r"part-\d+-of-\d+\.parquet")


def check(folder: Path) -> list[str]:
    """Return the faults of a folder, one line each: none where every part is whole and follows the plan.

    Parts are read once: their checksums, row numbers and vectors. Input files that are still where they were are
    compared with their checksums, URLs are not opened; ids of a column are compared with each other, at eight bytes a
    row.

    Raises:
        NotFoundError: It is no such folder.
    """
    plan = read_plan(folder)
    faults = list(_input_faults(folder, plan))
    manifest = None
    try:
        manifest = PartFolder(folder).manifest
    except PromptcliError as error:
        faults.append(str(error))
    if manifest is not None and manifest.plan != plan.digest():
        faults.append(f"{folder / MANIFEST} is not of {PLAN}; delete it and run the same `promptcli embed` again")
    known = {part_name(shard, plan.shards) for shard in range(plan.shards)}
    for path in sorted(folder.iterdir()):
        if _PART.fullmatch(path.name) and path.name not in known:
            faults.append(f"{path} is none of the {plan.shards:,} parts; delete it")
    sums = {part.path: part.sha256 for part in manifest.parts} if manifest else {}
    ids: list[np.ndarray] = []
    for shard in range(plan.shards):
        try:
            ids += _check_part(folder, plan, shard, sums.get(part_name(shard, plan.shards)))
        except PromptcliError as error:
            faults.append(str(error))
    same = _twice(np.concatenate(ids)) if plan.text_ids and ids else 0
    if same:
        faults.append(f"{folder}: {same:,} ids are those of other rows; give every row of the inputs an id of its own")
    return faults


def merge(folder: Path, target: Path, *, force: bool = False, progress: Callable[[int], None] | None = None) -> int:
    """Write all parts into one vector file with a manifest; return its rows.

    Args:
        folder: Finished.
        target: In the format of its extension; .npy and .safetensors have no room for ids and texts.
        force: It may be replaced.
        progress: Called with the number of rows newly written.

    Raises:
        UsageError: The target cannot be written.
        CheckFailedError: The folder is unfinished, or a part is not the one of the manifest.
    """
    output_of(folder, target, force=force)
    opened = PartFolder(folder)
    facts = {key: value for key, value in asdict(opened.manifest).items() if key not in ("parts", "shards", "plan")}

    def document(digest: str) -> str:
        return to_json({**facts, "precision": opened.manifest.dtype, "output": {"path": target.name, "sha256": digest}})

    with replace_with_sidecar(target, manifest_path(target), document) as temporary:
        with (
            temporary.open("xb") as file,
            open_sink(file, kind_of(target), opened.manifest.dim, with_text=opened.manifest.text) as sink,
        ):
            rows = 0
            for block in opened.blocks():
                texts = block.texts or [""] * len(block.ids)
                ids: Sequence[int | str] = block.ids
                pairs = zip(ids, texts, strict=True)
                records = [Record(row, found, text) for row, (found, text) in enumerate(pairs, start=rows)]
                sink.write(records, block.vectors.astype(opened.manifest.dtype, copy=False))
                rows += len(records)
                if progress is not None:
                    progress(len(records))
        if rows != opened.manifest.rows:
            raise CheckFailedError(f"{folder}: {rows:,} rows where {MANIFEST} says {opened.manifest.rows:,}")
    return rows


def sample(folder: Path, rows: int, seed: int = 0) -> Iterator[tuple[Record, np.ndarray]]:
    """Yield so many random rows with their vectors, in their order; only the parts that hold them are read.

    Raises:
        UsageError: There are fewer.
        CheckFailedError: The folder is unfinished, or a part is cut short.
    """
    opened = PartFolder(folder)
    if rows > opened.manifest.rows:
        raise UsageError(f"{folder} has {opened.manifest.rows:,} rows, not {rows:,}; ask for fewer")
    chosen = np.sort(np.random.default_rng(seed).choice(opened.manifest.rows, rows, replace=False))
    first = 0
    for shard, part in enumerate(opened.manifest.parts):
        if np.any((chosen >= first) & (chosen < first + part.rows)):
            for block in opened.part_blocks(shard, first):
                for at in chosen[(chosen >= block.row) & (chosen < block.row + len(block.ids))] - block.row:
                    text = block.texts[at] if block.texts else ""
                    yield Record(block.row + int(at), block.ids[at], text), block.vectors[at]
        first += part.rows


def _input_faults(folder: Path, plan: Plan) -> Iterator[str]:
    for file in plan.inputs:
        if is_remote(file.path) or not Path(file.path).exists():
            continue  # an archive of vectors need not have its inputs at hand; a plan from elsewhere may name any URL
        try:
            check_unchanged(file, str(folder))
        except PromptcliError as error:
            yield str(error)


def _check_part(folder: Path, plan: Plan, shard: int, digest: str | None) -> list[np.ndarray]:
    """Return the hashes of a part's ids where they are text.

    Raises:
        CheckFailedError: With what is wrong.
    """
    path, start = folder / part_name(shard, plan.shards), plan.bounds(shard)[0]
    check_follows(path, about_part(path), plan, shard)
    if digest is not None and sha256(path) != digest:
        raise CheckFailedError(
            f"{path}: its sha256 is not the manifest's; delete it and run the same `promptcli embed`"
        )
    hashes, row = [], start
    for block in read_blocks(path, start, width=plan.dim):
        if not np.isfinite(block.vectors).all():
            raise CheckFailedError(f"{path}: rows from {row}: vectors are not of finite numbers; delete it")
        if plan.text_ids:
            hashes.append(np.array([_hash(str(one)) for one in block.ids if one], dtype=np.uint64))
        elif list(block.ids) != list(range(row, row + len(block.ids))):
            raise CheckFailedError(f"{path}: rows from {row}: ids are not the row numbers; delete it")
        row += len(block.ids)
    return hashes


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _twice(hashes: np.ndarray) -> int:
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))
