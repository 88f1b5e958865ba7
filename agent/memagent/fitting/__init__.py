"""`memagent.fit`: the cheapest changes that make a training step fit a GPU, applied and proved."""
