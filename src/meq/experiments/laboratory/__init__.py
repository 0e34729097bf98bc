"""The paper's studies, each a function from a setting to a study; `meq.experiments.recipes` knows them by name."""
