"""How the stages run a model over a dataset."""

from __future__ import annotations

from espnet3.components.data.collect_stats import CollectStatsRunner
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner
from tqdm import tqdm


class _ProgressBar:
    """Show the batches that are done, where ESPnet3 shows whole shards."""

    @classmethod
    def _run_one_shard(cls, shard_id, items, env):
        bar = tqdm(items, desc=cls.__name__, unit="batch", disable=None)
        return super()._run_one_shard(shard_id, bar, env)


class StatsRunner(_ProgressBar, CollectStatsRunner):
    """Runner of the ``collect_stats`` stage."""


class InferenceRunner(_ProgressBar, ASRInferenceRunner):
    """Runner of the ``infer`` stage."""

    def _run_parallel_dask(self, shards):
        # ESPnet3 starts a Dask cluster even for one local worker, which takes half a
        # minute to come and go.
        return self._run_local(shards)
