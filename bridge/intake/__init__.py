"""In: entries as the broker stores them, into the index or straight on."""
