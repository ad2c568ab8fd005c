"""What people ask for: what is pending, what to cancel, what to worry about, who did what."""
