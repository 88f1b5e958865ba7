"""How the samples of a stream are cut into chunks anew. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from memagent.wire.columns import MAX_COLUMNS
from memagent_server.store.packing import Column, Columns, Mask

UNIT_ROWS = 512


@dataclass
class Piece:
    """Consecutive samples; `seq` is the place of the last one. Without `parts` it is a chunk that stays as it is."""

    parts: list[tuple[Columns, int, int]] = field(default_factory=list)
    """Columns of a chunk, and from which to before which row they are meant."""
    rows: int = 0
    seq: int = -1
    received_at: float = 0.0
    is_whole: bool = False
    """Whether nothing can come behind its last sample."""

    @property
    def stays(self) -> bool:
        return not self.parts

    def columns(self) -> Columns:
        """All parts in one."""
        names = dict.fromkeys(name for columns, _, _ in self.parts for name in columns)
        return {name: self._column(name) for name in names}

    def rest(self, after_seq: int) -> Piece:
        """What stands behind a place within it; it has one part."""
        ((columns, _, end),) = self.parts
        rows = self.seq - after_seq
        return Piece([(columns, end - rows, end)], rows, self.seq, self.received_at)

    def _column(self, name: str) -> Column:
        kind = next(columns[name][0].dtype for columns, _, _ in self.parts if name in columns)
        values, masks = [], []
        for columns, begin, end in self.parts:
            known = columns.get(name)
            values.append(np.zeros(end - begin, kind) if known is None else known[0][begin:end])
            masks.append(
                None if known is not None and known[1] is None else _mask(known, begin, end)
            )
        if all(mask is None for mask in masks):
            return np.concatenate(values), None
        whole = [
            np.ones(len(part), np.bool_) if mask is None else mask
            for part, mask in zip(values, masks, strict=True)
        ]
        return np.concatenate(values), np.concatenate(whole)


def cut(sources: Iterable[Piece]) -> list[Piece]:
    """Pieces of UNIT_ROWS samples, shorter where steps go back, a column changes its kind, or a source stays as it is."""
    found: list[Piece] = []
    piece = Piece()
    for source in sources:
        begin = 0
        while begin < source.rows:
            if piece.rows and (source.stays or not _goes_on(piece, source, begin)):
                found.append(piece)
                piece.is_whole, piece = True, Piece()
            if source.stays:
                source.is_whole = True
                found.append(source)
                break
            take = min(UNIT_ROWS - piece.rows, source.rows - begin)
            _add(piece, source, begin, take)
            begin += take
            if piece.rows == UNIT_ROWS:
                found.append(piece)
                piece.is_whole, piece = True, Piece()
    return [*found, piece] if piece.rows else found


def _goes_on(piece: Piece, source: Piece, begin: int) -> bool:
    """Whether these samples may stand behind those that are there."""
    last, _, end = piece.parts[-1]
    columns = source.parts[0][0]
    if last["step"][0][end - 1] > columns["step"][0][begin]:
        return False
    if columns.keys() == last.keys():
        return all(columns[name][0].dtype == last[name][0].dtype for name in columns)
    known = {name: of[0].dtype for each, _, _ in piece.parts for name, of in each.items()}
    is_one_kind = all(known.get(name, of[0].dtype) == of[0].dtype for name, of in columns.items())
    return is_one_kind and len({*known, *columns}) <= MAX_COLUMNS


def _add(piece: Piece, source: Piece, begin: int, take: int) -> None:
    piece.parts.append((source.parts[0][0], begin, begin + take))
    piece.rows += take
    piece.seq = source.seq - source.rows + begin + take
    piece.received_at = source.received_at


def _mask(known: Column | None, begin: int, end: int) -> Mask:
    if known is None or known[1] is None:
        return np.zeros(end - begin, np.bool_)
    return known[1][begin:end]
