"""What a request may ask for: the bridge behind it, the topic it names, its values."""
