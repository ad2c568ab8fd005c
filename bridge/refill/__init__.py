"""In again: gaps, rebuilds and audits, in process and by Spark jobs."""
