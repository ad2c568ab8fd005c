"""The other workers of this host: the first one answers for all of them."""
