"""The worker: claims jobs, runs each in a process of its own, renews their leases, and reports what became of them."""
