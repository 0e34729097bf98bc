"""A port of this machine, and who may use it: what the Explorer's page and the endpoint of a run share."""
