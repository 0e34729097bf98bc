"""A trained run in use: loaded, asked, scored, diagnosed, explained."""
