"""HTTP: health, metrics, REST."""
