"""What can be read off a trained run, by name."""

from meq.studies.measures.contract import (
    MEASURES,
    make_measure,
    measured_of,
    read_measured,
    take_measure,
    write_measured,
)

__all__ = ["MEASURES", "make_measure", "measured_of", "read_measured", "take_measure", "write_measured"]
