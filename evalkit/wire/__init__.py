"""Stubs of the wire contract, generated from protos/sandbox.proto by `make protos`."""
