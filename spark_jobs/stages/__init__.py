"""What the workers of a job do."""
