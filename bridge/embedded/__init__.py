"""A real Pulsar as a child process."""
