"""One running node: from a directory to answers. Start at `bootstrap`, then `node`."""
