"""What the iteration costs: time, FLOPs and memory."""
