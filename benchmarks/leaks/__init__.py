"""Cost of a leak diagnosis by the number of live objects: the census, the search for the holder,
the whole diagnosis, and the most that one step of it takes. All in processor time.

Milliseconds depend on the machine; the column "a pass" gives them as multiples of one bare pass
over the same objects (`gc.get_objects` and one look at each type), taken in the same run.

`scripts` runs the training scripts of the exams in `scripts/` under `memagent run` instead, and
compares the suspects with the `truth.json` of each. `steps` does so with timers in `memagent`: it
also gives what the finder takes of the training thread at each step boundary.
"""
