"""Which bridges there are, and which of them sees to which topics."""
