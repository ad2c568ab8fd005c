"""Time partitions: what each holds, where its entries are by position, and how that is stored."""
