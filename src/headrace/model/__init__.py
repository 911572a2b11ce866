"""The nouns that all rooms share: ids, names, schemas, batches; pure."""
