"""The tf.data input module: sources of encoded records, image decoding, and the batch pipeline."""
