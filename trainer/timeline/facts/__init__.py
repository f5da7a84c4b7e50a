"""Measured facts, the evidence of the rules: each module measures one kind of thing and says None where it can't."""

from trainer.timeline.facts.collect import collect
from trainer.timeline.facts.subject import Fact, Subject

__all__ = ["Fact", "Subject", "collect"]
