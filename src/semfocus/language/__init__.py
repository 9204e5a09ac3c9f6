"""Language models: decoders that are trained from scratch on text, one run after another, on one device or many."""
