"""Pictures and diagrams of the documentation."""
