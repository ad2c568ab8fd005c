"""Where entries lie when they are read past the broker, and what bookies are asked and answer: pure."""
