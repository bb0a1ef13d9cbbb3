"""Work that is done in pieces, each with a key: here, in parts on several machines, or on a Ray cluster."""
