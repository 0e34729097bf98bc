"""Where the runs of a study are made: in this process, in several, on a cluster."""
