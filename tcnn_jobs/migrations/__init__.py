"""The database's schema, revision by revision. `Store.migrate` runs what is missing."""
