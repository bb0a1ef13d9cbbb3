"""Files that are either whole or not there, and limits on what is read."""
