"""Fixtures of the regression tests."""

from tests.sandbox.fixtures import flow_folder, flow_server, server, tiny_bundle
from tests.sandbox.served_models import sandbox, served_process, upstream

__all__ = ["flow_folder", "flow_server", "sandbox", "served_process", "server", "tiny_bundle", "upstream"]
