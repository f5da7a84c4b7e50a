"""Fixtures of the regression tests."""

from tests.sandbox.fixtures import flow_folder, flow_server, server, tiny_bundle

__all__ = ["flow_folder", "flow_server", "server", "tiny_bundle"]
