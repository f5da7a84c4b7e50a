"""The staging server: the exported model inside a business flow, behind gRPC."""
