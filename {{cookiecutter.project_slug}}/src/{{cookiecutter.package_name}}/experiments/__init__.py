"""Controlled experiments: two ways of training in turn, a ladder of practices, a batch size."""
