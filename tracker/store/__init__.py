"""The files below all indexes: RocksDB, its column families, the records in it."""
