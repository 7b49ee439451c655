"""The data model: jobs and their requests, labels and comparable columns, tenants, API keys, identifiers. Pure."""
