"""Which process a sandbox belongs to: evalkit names itself, and the server ends when it's gone, even killed."""

OWNER_VARIABLE = "EVALKIT_SANDBOX_OWNER"
"""Environment variable with the process id of the parent that the server must not outlive."""
