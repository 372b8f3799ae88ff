"""A module whose import takes as long as the file HELD_IMPORT is there."""

import os
import time

while os.path.exists(os.environ["HELD_IMPORT"]):
    time.sleep(0.02)
