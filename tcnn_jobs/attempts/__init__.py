"""A job's attempts as its worker sees them: what an attempt needs, how it starts, how far it got, and what is kept."""
