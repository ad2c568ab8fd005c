"""Random faults in a row, on a real Pulsar under load, and an account of what was owed, early, acked before."""
