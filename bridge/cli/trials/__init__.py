"""Commands for trying out and for planning: they ask no bridge that runs."""
