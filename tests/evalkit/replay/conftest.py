"""The real sandbox's fixtures, for the tests that replay against it."""

from tests.sandbox.fixtures import flow_folder, flow_server, tiny_bundle

__all__ = ["flow_folder", "flow_server", "tiny_bundle"]
