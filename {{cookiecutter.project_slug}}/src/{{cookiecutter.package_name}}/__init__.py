"""A TensorFlow training project that keeps its GPUs busy, and says why when they are not."""
