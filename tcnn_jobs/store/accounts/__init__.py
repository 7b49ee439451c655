"""Accounts: tenants, API keys, quotas, fair share, and the audit log."""
