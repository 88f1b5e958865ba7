"""What a diagnosis costs: the census, the way up to the holder, the whole pause, by the number of live objects.

Milliseconds depend on the machine; the column "a pass" gives them as multiples of one bare pass over the same objects (`gc.get_objects` and
looking at each type once), taken in the same run.
"""
