"""Parts made by the tasks of a Ray cluster, and Ray data sets. Nothing else knows Ray."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from promptcli.data.files import is_remote
from promptcli.embedding.parts import PartJob
from promptcli.encoder.encoder import Encoder, build_encoder
from promptcli.errors import PromptcliError, UsageError, one_line
from promptcli.notes import Advance


def make_by_ray(
    job: PartJob, shards: Sequence[int], advance: Advance, *, address: str | None, workers: int | None
) -> None:
    """Make parts by the tasks of a Ray cluster, one a part, at most ``workers`` at once."""
    ray = start_ray(address)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    job = dataclasses.replace(_reachable(job), device="cuda" if gpus else "cpu")
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=0)(_make)  # else a process of a GPU makes one part only
    shared, waiting, running = ray.put(job), list(shards), list[Any]()
    try:
        while waiting or running:
            while waiting and len(running) < (workers or len(shards)):
                running.append(task.remote(shared, waiting.pop(0)))
            done, running = ray.wait(running)
            advance(ray.get(done[0]))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, PromptcliError | OSError | MemoryError):
            raise cause from None
        problem = f"{type(error).__name__}: {one_line(error, 160)}"
        raise PromptcliError(f"Ray gave up ({problem}); complete parts stay; run the same command again") from None
    finally:
        for task in running:
            ray.cancel(task, force=True)


#: The jobs of this process, each with its encoder, by folder and manifest.
_JOBS: dict[tuple[Path, str], PartJob] = {}


def _make(job: PartJob, shard: int) -> int:
    return _JOBS.setdefault((job.folder, job.manifest.digest), job).make(shard)


def start_ray(address: str | None = None) -> Any:
    """Return the module ``ray``, connected to the cluster at an address or to a new one on this machine."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise UsageError("`engine` ray needs Ray; install the extra: pip install 'promptcli[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            problem = f"no Ray cluster answers ({one_line(error, 120)})"
            raise UsageError(f"`address` {address}: {problem}; start one with `ray start`") from None
    return ray


def _reachable(job: PartJob) -> PartJob:
    """Return a job with absolute paths."""
    inputs = [
        file if is_remote(file.path) else dataclasses.replace(file, path=str(Path(file.path).resolve()))
        for file in job.inputs
    ]
    recipe = job.entry.recipe
    if Path(recipe.backbone).is_dir():
        recipe = recipe.replace(backbone=str(Path(recipe.backbone).resolve()))
    entry = dataclasses.replace(job.entry, recipe=recipe)
    return dataclasses.replace(job, folder=job.folder.resolve(), inputs=inputs, entry=entry)


class _Column:
    """Opens the encoder once and adds vectors to tables."""

    def __init__(self, encoder: list[Any], device: str, add: Callable[[Any, Encoder], Any]) -> None:
        import ray

        recipe, tensors, dtype = ray.get(encoder[0])
        self._encoder, self._add = build_encoder(recipe, device=device, dtype=dtype, tensors=tensors), add

    def __call__(self, table: Any) -> Any:
        return self._add(table, self._encoder)


def embed_ray(data: Any, encoder: Encoder, add: Callable[[Any, Encoder], Any], size: int) -> Any:
    """Return a ``ray.data.Dataset`` on whose tables ``add`` was called, up to ``size`` rows at once; lazy."""
    ray = start_ray()
    resources = ray.cluster_resources()
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
    plain = ray.put((encoder.recipe, encoder.tensors(), encoder.provenance["dtype"]))
    return data.map_batches(
        _Column,
        fn_constructor_args=([plain], "cuda" if gpus else "cpu", add),
        batch_size=size,
        batch_format="pyarrow",
        concurrency=(1, max(1, gpus or cpus - 1)),  # Ray Data waits for ever if no CPU is free for its own tasks
        num_cpus=1,
        num_gpus=1 if gpus else 0,
    )
