"""From a table to a file of answers: python examples/csv_to_predictions.py photos.csv new.csv answers.csv

The first table has the columns photo (paths of pictures), caption (texts) and y (labels); the second has no labels. The
run is kept in runs/photos, where `meq analyze runs/photos` and the other commands find it.
"""

import sys

from meq.data.request import DataRequest
from meq.runs import train_on

table, new, answers = sys.argv[1:]
run = train_on(DataRequest(data=table, images=["photo"], texts=["caption"], label="y"), "runs/photos")
print(run.evaluate())
run.predict_table(new).save(answers)
