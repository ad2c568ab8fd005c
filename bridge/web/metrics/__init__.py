"""What a scrape gets."""
