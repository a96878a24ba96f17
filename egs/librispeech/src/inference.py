"""How the stages run a model over a dataset.

ESPnet3 shows whole shards as progress, starts a cluster for a single worker, and keeps
shards of statistics whatever they were made of.
"""

from __future__ import annotations

from typing import Any

from espnet3.components.data.collect_stats import CollectStatsRunner
from espnet3.parallel import base_runner
from espnet3.parallel.parallel import get_parallel_config
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner
from tqdm import tqdm


def _show_shards(shards, total: int, desc: str) -> tqdm:
    # A single one is shown by its batches, below.
    return tqdm(shards, total=total, desc=desc, disable=total == 1)


base_runner.tqdm = _show_shards


class _ProgressBar:
    """Show the batches that are done, where ESPnet3 shows whole shards."""

    @classmethod
    def _run_one_shard(cls, shard_id, items, env):
        bar = tqdm(items, desc=cls.desc, unit="batch", disable=None)
        return super()._run_one_shard(shard_id, bar, env)

    def _run_parallel_dask(self, shards):
        # ESPnet3 starts a Dask cluster even for one local worker, which takes half a
        # minute to come and go.
        if get_parallel_config().n_workers == 1:
            return self._run_local(shards)
        return super()._run_parallel_dask(shards)


class StatsRunner(_ProgressBar, CollectStatsRunner):
    """Runner of the ``collect_stats`` stage."""

    desc = "collect statistics"

    def __init__(self, *args: Any, **options: Any) -> None:
        # What an earlier run has done may be of other tokens, or shared out otherwise.
        super().__init__(*args, resume=False, **options)


class InferenceRunner(_ProgressBar, ASRInferenceRunner):
    """Runner of the ``infer`` stage."""

    desc = "decode"
