"""Out, where keys are shared: whose a key is, when its turn comes, and what waits for it."""
