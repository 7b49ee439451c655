"""The database behind the store: connections and transactions with deadlines, tables, migrations."""
