"""From a table to a file of answers: python examples/csv_to_predictions.py photos.csv new.csv answers.csv

The first table has the columns photo (paths of pictures), caption (texts) and y (labels); the second has no labels. The
run is kept in runs/photos, where `meq diagnose runs/photos` and the other commands find it.
"""

import sys

import meq

table, new, answers = sys.argv[1:]
run = meq.train(table, image="photo", text="caption", label="y", out="runs/photos")
print(run.evaluate())
run.predict(new).save(answers)
