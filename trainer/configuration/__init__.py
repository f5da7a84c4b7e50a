"""The parts of the training configuration, one topic a file."""
