"""How times and message ids are read and written."""
