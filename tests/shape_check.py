"""The run-time type checker of the tests: an int may stand where a float is asked for, as everywhere in Python."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
