"""The processes that train together, started by MindSpore's `msrun`."""

import os
from dataclasses import dataclass, fields, replace
from typing import Any

import mindspore as ms
import numpy as np

from evalkit.errors import InputError
from trainer.config import TrainConfig
from trainer.data.packing import Batch
from trainer.sharding import context_settings


@dataclass(frozen=True)
class Processes:
    """This process's place among those that train together."""

    rank: int
    count: int

    @property
    def writes(self) -> bool:
        """Whether this one writes the run folder."""
        return self.rank == 0

    def data_config(self, config: TrainConfig) -> TrainConfig:
        """How the data is cut into batches: those of all replicas are one."""
        return config.model_copy(update={"batch_size": config.batch_size * self.count})

    def share(self, batch: Batch, rows: int) -> Batch:
        """This replica's `rows` rows of a batch of all replicas."""
        if self.count == 1:
            return batch
        own = slice(self.rank * rows, (self.rank + 1) * rows)
        arrays: dict[str, Any] = {
            field.name: value[own]
            for field in fields(batch)
            if isinstance(value := getattr(batch, field.name), np.ndarray)
        }
        return replace(batch, **arrays)

    def any(self, flag: bool) -> bool:
        """Whether the flag is up in one of the processes; all must ask."""
        if self.count == 1:
            return flag
        return bool(ms.ops.AllReduce()(ms.Tensor([float(flag)], ms.float32)).asnumpy()[0] > 0)


def start_processes(config: TrainConfig) -> Processes:
    """Bring up MindSpore for this process and its communication, in the order that MindSpore needs.

    The mode first, then the communication, then the parallel context that reads the number of devices, then the
    seed; networks are built after all of it, with equal seeds in every process, so that all start from one model.

    Raises:
        InputError: the number of processes isn't what `config.parallel` declares, or its kind needs another device.
    """
    parallel = config.parallel
    if parallel.splits_the_model and ms.get_context("device_target") == "CPU":
        raise InputError(
            "parallel: this version checks a declaration with model or pipeline above 1 or optimizer_shard, but can't "
            "train it; set them to 1 and false (data above 1 trains)"
        )
    started = int(os.environ.get("MS_WORKER_NUM", "1"))
    if started != parallel.devices:
        raise InputError(
            f"parallel: data {parallel.data}, model {parallel.model} and pipeline {parallel.pipeline} need "
            f"{parallel.devices} processes, {started} was started; use `msrun --worker_num={parallel.devices} "
            f"--local_worker_num={parallel.devices} ...` (docs/training.md)"
        )
    ms.set_context(mode=ms.PYNATIVE_MODE if config.debug else ms.GRAPH_MODE)
    rank = 0
    if parallel.devices > 1:
        from mindspore.communication import get_rank, init

        init()
        rank = get_rank()
        ms.set_auto_parallel_context(**context_settings(parallel))
    if parallel.splits_the_model:
        ms.set_algo_parameters(
            fully_use_devices=parallel.fully_use_devices,
            elementwise_op_strategy_follow=parallel.elementwise_op_strategy_follow,
        )
    ms.set_seed(config.seed)
    return Processes(rank, parallel.devices)
