"""A column of vectors for Ray's data sets, added by actors that hold an encoder each."""

import os
from typing import Any

import ray
import ray.data

from promptcli.embedding.datasets import VectorColumn
from promptcli.plugins.cluster.ray_engine import worker_environment, worker_module


def add_by_actors(dataset: Any, column: VectorColumn) -> Any:
    """Return a data set with the column: an actor a GPU, else one a CPU and a CPU left free."""
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    if column.device == "cpu":
        gpus = 0
    cpus = int(resources.get("CPU", 1))
    # a CPU stays free for the tasks that read and write, else Ray waits for ever
    actors = gpus or max(1, cpus - 1)
    adding = column.for_workers("cuda" if gpus else "cpu")
    return dataset.map_batches(
        worker_module().Adder,
        # packed, else Ray would open it before the actor begins
        fn_constructor_args=(worker_environment(), os.getcwd(), ray.cloudpickle.dumps(adding)),
        batch_size=column.window,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
        num_cpus=1 if cpus > 1 else 0,
        num_gpus=1 if gpus else 0,
    )
