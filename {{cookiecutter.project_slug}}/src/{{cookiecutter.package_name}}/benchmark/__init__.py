"""`--benchmark`: probes, statistics, cause and report."""
