"""`python -m meq`, so that `torchrun -m meq train ...` and `accelerate launch -m meq train ...` work."""

from meq.cli import main

main()
