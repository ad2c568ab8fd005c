"""Out: entries that are due, to consumers with permits, once each."""
