"""What is measured of catalogues."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CatalogueRow:
    """One figure."""

    set: str
    members: int
    contender: str
    quantity: str
    value: float
    unit: str
    depth: int | None = None  # tokens before the step


@dataclass(frozen=True)
class Collector:
    """Figures of one contender among one set."""

    rows: list[CatalogueRow]
    set: str
    members: int

    def put(self, contender: str, quantity: str, value: float, unit: str, depth: int | None = None) -> None:
        """Take one down."""
        self.rows.append(CatalogueRow(self.set, self.members, contender, quantity, float(value), unit, depth))
