"""Parts of the iterated map. Tensors in, tensors out; a block never iterates."""
