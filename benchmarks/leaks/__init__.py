"""Cost of a leak diagnosis by the number of live objects: the census, the search for the holder,
and the whole pause.

Milliseconds depend on the machine; the column "a pass" gives them as multiples of one bare pass
over the same objects (`gc.get_objects` and one look at each type), taken in the same run.
"""
