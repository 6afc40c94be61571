"""Several processes that share a job, or a fate."""
