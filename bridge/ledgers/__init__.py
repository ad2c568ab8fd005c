"""What a broker says of a topic's ledgers and cursors: pure."""
