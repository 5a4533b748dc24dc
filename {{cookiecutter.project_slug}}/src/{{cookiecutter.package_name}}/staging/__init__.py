"""Copies a data set to a local SSD: never a wrong byte at a final name, once a host, resumable."""
