"""Who may do how much, as rows: tenants, their API keys, quotas and turns, and the audit log; jobs change elsewhere."""
