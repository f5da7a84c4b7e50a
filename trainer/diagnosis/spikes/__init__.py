"""Loss spikes: find them in training logs, measure what moved with them, and rank their causes."""

from trainer.diagnosis.spikes.detect import Detection, Rises, Spike, find_rises
from trainer.diagnosis.spikes.readers import read_training_log
from trainer.diagnosis.spikes.records import TrainingLog, TrainingStep
from trainer.diagnosis.spikes.run import SpikeReport, diagnose_spikes

__all__ = [
    "Detection",
    "Rises",
    "Spike",
    "SpikeReport",
    "TrainingLog",
    "TrainingStep",
    "diagnose_spikes",
    "find_rises",
    "read_training_log",
]
