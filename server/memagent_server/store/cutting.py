"""How the samples of a stream are cut into chunks anew. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from memagent.wire.columns import MAX_COLUMNS, Value
from memagent.wire.fields import Kind

UNIT_ROWS = 512


@dataclass
class Piece:
    """Consecutive samples; `seq` is the place of the last one. Without `columns` it is a chunk that stays as it is."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    columns: dict[str, list[Value]] = field(default_factory=dict)
    rows: int = 0
    seq: int = -1
    received_at: float = 0.0
    is_whole: bool = False
    """Whether nothing can come behind its last sample."""

    @property
    def stays(self) -> bool:
        return not self.columns

    def rest(self, after_seq: int) -> Piece:
        """The part behind a place within it."""
        rows = self.seq - after_seq
        columns = {name: values[-rows:] for name, values in self.columns.items()}
        return Piece(self.kinds, columns, rows, self.seq, self.received_at)


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
    is_one_kind = all(piece.kinds.get(name, kind) == kind for name, kind in source.kinds.items())
    goes_back = (piece.columns["step"][-1] or 0) > (source.columns["step"][begin] or 0)
    return is_one_kind and not goes_back and len({*piece.kinds, *source.kinds}) <= MAX_COLUMNS


def _add(piece: Piece, source: Piece, begin: int, take: int) -> None:
    for name in {**source.columns, **piece.columns}:
        values = piece.columns.setdefault(name, [None] * piece.rows)
        values.extend(source.columns[name][begin : begin + take] if name in source.columns else [None] * take)
    piece.kinds.update(source.kinds)
    piece.rows += take
    piece.seq = source.seq - source.rows + begin + take
    piece.received_at = source.received_at
