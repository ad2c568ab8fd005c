"""What an index holds, written for another one to begin with."""
