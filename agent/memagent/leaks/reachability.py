"""Search downwards from the script's variables, for tensors that the search upwards can't place.

Some holders don't show up as referrers: numpy arrays, dicts without tracked values, and contexts.
A long chain takes the search upwards one pass over all objects per link; downwards, one pass is
enough.

1. Walk from the script's variables to the tensors, nearest objects first (`variable_walk`).
2. The container is the lowest object that leads to most of the tensors.
3. Its name is the first on the way back up, as seen from the objects on that way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from memagent.leaks.library_containers import name_of_root
from memagent.leaks.object_labels import key_of
from memagent.leaks.object_names import ObjectName, name_from, variable_names
from memagent.leaks.referrers import HolderPath, ReferrerSearch
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes, is_script_class
from memagent.leaks.variable_walk import CONTAINERS, MAX_OBJECTS, VariableWalk, parts_with_arrays

_MAX_SAMPLE = 200
_MAX_KEPT_SAMPLE = 50
"""Objects of a line whose ways up are looked at: each link of a way takes one more pass."""
_MIN_COVERAGE = 0.6
_MIN_BRANCH = 0.2
_MIN_LINKS = 4
_MAX_NAMES = 3
_MAX_TRIES = 5
"""Walks in search of what grows, each without the fixed containers of those before."""
_MAX_DEPTH = 4


def holders_from_variables(
    scopes: UserScopes, tensors: Sequence[Any], budget: TimeBudget, without: Collection[int] = ()
) -> list[HolderPath]:
    """Return the named objects that `tensors` are in, the most likely container first.

    That is the lowest object that leads to most of them, or one of a few below it that are filled
    in the same way: `state[key].append(x)`. But those may as well be the items of what grows.
    without: ids of objects that the search doesn't go through. A sample of many tensors will do.
    """
    tensors = tensors[:: 1 + len(tensors) // _MAX_SAMPLE]
    wanted = set(map(id, tensors))
    walk = VariableWalk(lambda items: wanted.intersection(map(id, items)), len(wanted), without)
    walk.run(scopes, budget)
    return _holders(scopes, walk.ways_up(tensors), len(tensors))


def holders_of_kept(
    scopes: UserScopes,
    find: Callable[[list[Any]], set[int]],
    find_owners: Callable[[list[Any]], set[int]],
    budget: TimeBudget,
    growth_of: Callable[[Any], int | None],
) -> list[HolderPath]:
    """Return the named objects that most of the objects are in that `find` selects, likely first.

    A container of fixed size is passed through to the next one that grew, else left out: the batch
    of this step may be what leads to the objects first. If nothing else does, those of fixed size
    count, as links that a line must add: `rows = rows + [x]`, `rows[place] = x`.

    find: returns the ids of those among some objects that are wanted. find_owners: returns the ids
    of those that refer to a wanted array, which the walk doesn't hold. growth_of: returns how many
    entries a container has more than before, None if that's unknown.
    """
    without: set[int] = set()
    fixed: list[HolderPath] = []
    for _ in range(_MAX_TRIES):
        if budget.is_over():
            break
        walk = VariableWalk(find, _MAX_SAMPLE, without, find_owners)
        if walk.run(scopes, budget):  # further walks can only reach what this one has
            find = find_owners = partial(_ids_among, set(walk.reached))
        reached = list(walk.reached.values())
        ways = walk.ways_up(reached[:: 1 + len(reached) // _MAX_KEPT_SAMPLE])
        if (common := _common_place(ways)) is None:
            break
        fewest, way, place = common
        if not _is_fixed(ways, way, place, growth_of):
            return _holders(scopes, ways, len(ways))
        outer = next((item for item in range(place + 1, len(way)) if growth_of(way[item])), None)
        holder = None if outer is None else _named(scopes, way, outer, fewest / len(ways))
        if holder is not None:
            return [holder]
        # it may be new because it's made anew with one entry more, so its line decides
        fixed += [replace(item, is_link=True) for item in _holders(scopes, ways, len(ways))]
        without.add(id(way[place]))
    return fixed


def _ids_among(ids: set[int], items: list[Any]) -> set[int]:
    return ids.intersection(map(id, items))


def _is_fixed(
    ways: list[list[Any]], way: list[Any], place: int, growth_of: Callable[[Any], int | None]
) -> bool:
    """Return True for a container that hasn't grown, nor most of those in it, nor is in a chain."""
    container = way[place]
    if type(container) not in CONTAINERS or growth_of(container):
        return False
    # a dict of a few keys keeps as much as the lists that it leads to
    inner = (way[: _index(way, container)] for way in ways)
    grown = sum(any(map(growth_of, items)) for items in inner)
    longest = max((item for item in ways if _index(item, container)), key=len, default=way)
    is_link = _end_of_key_chain(longest, _index(longest, container)) is not None
    return 2 * grown < len(ways) and not is_link and _end_of_chain(way, place) == place


def _index(way: list[Any], target: Any) -> int:
    return next((index for index, item in enumerate(way) if item is target), 0)


def _common_place(ways: list[list[Any]]) -> tuple[int, list[Any], int] | None:
    """Return the lowest object that most ways lead through: how many do, one, its place in it."""
    leads_to = Counter(id(item) for way in ways for item in way[1:])
    enough = max(2, _MIN_COVERAGE * len(ways))
    places = []
    for way in ways:
        place = next((index for index, item in enumerate(way) if leads_to[id(item)] >= enough), 0)
        if place:
            places.append((leads_to[id(way[place])], way, place))
    # a variable with the newest object leads there as well, but not to the others
    return min(places, key=lambda item: item[0], default=None)


def _holders(scopes: UserScopes, ways: list[list[Any]], count: int) -> list[HolderPath]:
    """Return the named objects that most of the ways lead through. count: of objects in all."""
    if (common := _common_place(ways)) is None:
        return []
    fewest, way, place = common
    leads_to = Counter(id(item) for way in ways for item in way[1:])
    top = branch = _end_of_chain(way, place)
    least = max(3, _MIN_BRANCH * len(ways))
    while top == place and branch > 1 and leads_to[id(way[branch - 1])] >= least:
        branch -= 1
    coverage, longest = fewest / count, max(ways, key=len)
    named = [_named(scopes, way, item, coverage) for item in dict.fromkeys((branch, top))]
    links = _outer_links(longest, way[place:])
    outer = filter(None, (_named(scopes, longest, item, coverage) for item in links))
    return [*(replace(item, is_link=True) for item in outer), *filter(None, named)]


def _end_of_chain(way: list[Any], place: int) -> int:
    """Return the place of the outermost link, if the item is one of a chain: `node.previous`."""
    kind = type(way[place])
    if (end := _end_of_key_chain(way, place)) is not None:
        return end
    links = [index for index in range(place, len(way)) if type(way[index]) is kind]
    if kind in CONTAINERS - {tuple} or len(links) < _MIN_LINKS:
        return place
    return links[-1]


def _end_of_key_chain(way: list[Any], place: int) -> int | None:
    """Return the place of the outermost dict in a chain by one key: `info["last"] = last_info`.

    None if the item isn't in such a chain.
    """
    keys = [
        key_of(outer, inner) if type(outer) is dict and type(inner) is dict else None
        for inner, outer in pairwise(way)
    ]
    runs = [(key, list(run)) for key, run in groupby(range(len(keys)), keys.__getitem__)]
    ends = (
        run[-1]
        for key, run in runs
        if isinstance(key, str) and len(run) >= _MIN_LINKS and run[0] <= place <= run[-1] + 1
    )
    return next(ends, None)


def _outer_links(longest: list[Any], way: list[Any]) -> list[int]:
    """Return the places of the two outermost objects, if a list or dict is in a chain of such.

    `data.transform = Compose([data.transform, x])` adds a link outside of the others, and
    `self.best = deepcopy(self)` one below the outermost. way: from the list or dict upwards.
    """
    if type(way[0]) not in CONTAINERS - {tuple}:
        return []
    kind = next((type(item) for item in way if is_script_class(type(item))), None)
    links = [index for index, item in enumerate(longest) if type(item) is kind]
    return links[-2:][::-1] if len(links) >= _MIN_LINKS else []


def ids_below(container: Any) -> set[int]:
    """Return the ids of what a container leads to in a few steps, none if that's too much."""
    known: set[int] = set()
    level = [container]
    for _ in range(_MAX_DEPTH):
        level = [part for part in parts_with_arrays(level) if id(part) not in known]
        known.update(map(id, level))
        if len(known) > MAX_OBJECTS:
            return set()
    return known


def nearest_name(
    search: ReferrerSearch, target: Any, budget: TimeBudget, without: Collection[int] = ()
) -> HolderPath:
    """Return the nearest name of a single object, else the best one that its referrers have.

    without: ids of objects that the search downwards doesn't go through.
    """
    wanted = {id(target)}
    walk = VariableWalk(lambda items: wanted.intersection(map(id, items)), 1, without)
    walk.run(search.scopes, budget)
    holders = (_named(search.scopes, way, 0, 1.0) for way in walk.ways_up([target]))
    return next(filter(None, holders), None) or search.name(target)


def nearest_names(
    scopes: UserScopes,
    ids: Collection[int],
    budget: TimeBudget,
    owners: Iterable[Any] | None = None,
) -> dict[int, HolderPath]:
    """Return by its id the nearest name of each object that one walk over all of them reaches.

    owners: where the walk begins, if not at the script's variables.
    """
    wanted = set(ids)
    walk = VariableWalk(lambda items: wanted.intersection(map(id, items)), len(wanted))
    walk.run(scopes, budget, owners)
    ways = walk.ways_up(walk.reached.values())
    names = ((id(way[0]), _named(scopes, way, 0, 1.0)) for way in ways)
    return {key: holder for key, holder in names if holder is not None}


def names_of(search: ReferrerSearch, target: Any, budget: TimeBudget) -> list[HolderPath]:
    """Return the names of an object by the first few things that refer to it, nearest first."""
    holders: list[HolderPath] = []
    without: set[int] = set()
    while len(holders) < _MAX_NAMES and not budget.is_over():
        holder = nearest_name(search, target, budget, without)
        known = [item.name.expression for item in holders if item.name is not None]
        if holder.name is None or holder.name.expression in known:
            break
        holders.append(holder)
        if not holder.above:
            break
        without.add(id(holder.above[0]))
    return holders


def _named(scopes: UserScopes, way: list[Any], place: int, coverage: float) -> HolderPath | None:
    if place and (own := name_from(scopes, way[place], [])) is not None:
        return HolderPath(way[place], coverage, own, tuple(way[:place][::-1]), ())
    name: ObjectName | None = None
    top = place
    for level in range(place, len(way)):
        top = level
        path = way[place : level + 1]
        names = [(item, level) for item in variable_names(scopes, path)]
        if level + 1 < len(way) and (outer := name_from(scopes, way[level + 1], path)) is not None:
            names.append((outer, level + 1))
        names = [
            item for item in names if item[0].is_in_script and item[0].owner is not type(way[place])
        ]
        if names:
            name, top = min(names, key=lambda item: item[0].rank)
            break
    name = name or name_of_root(scopes, way[place : top + 1])
    if name is None:
        return None
    return HolderPath(
        way[place], coverage, name, tuple(way[:place][::-1]), tuple(way[place + 1 : top + 1])
    )
