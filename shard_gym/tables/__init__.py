"""Tables as columns: the pool, its 21 features, files, synthetic pools and index traces."""
