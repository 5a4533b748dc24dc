"""The `prepare` command: originals are listed, edited, planned into shards, written, checked."""
