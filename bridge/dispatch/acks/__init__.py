"""What becomes of acks: those that come early or late, in transactions, and those that a broker has lost."""
