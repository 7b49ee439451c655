"""HTTP routes: each validates, asks the store, and answers."""
