"""The data model: jobs, requests, workers, statistics, labels, columns, tenants, API keys, identifiers. Pure."""
