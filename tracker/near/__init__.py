"""The near term: entries of the time partitions that are due soon, packed in memory."""
