"""To be the owner of a topic partition, to become it, and to be ready to."""
