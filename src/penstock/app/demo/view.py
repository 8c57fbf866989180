"""The live view of the demo."""

from __future__ import annotations

from dataclasses import field

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.app.demo.picture import Sample
from penstock.core.units import format_size
from penstock.model.values.dataclass import dataclass


@dataclass(slots=True, kw_only=True)
class Board:
    """All that the view shows, newest values."""

    total_events: int
    written_events: int = 0
    written_rate: float = 0.0
    processed_rows: int = 0
    batch: int = -1
    batch_ms: int = 0
    sample: Sample | None = None
    held_by: str = ""
    store: str = "starting"
    notes: list[str] = field(default_factory=list)

    def render(self) -> RenderableType:
        bars = Table.grid(padding=(0, 1))
        for name, count in (("writer", self.written_events), ("Spark query 'delays'", self.processed_rows)):
            bars.add_row(
                name,
                ProgressBar(total=self.total_events, completed=count, width=40),
                f"{count:>9,} of {self.total_events:,}",
            )
        facts = Table.grid(padding=(0, 2))
        facts.add_row("events/s written", f"{self.written_rate:,.0f}")
        facts.add_row("last batch", f"{self.batch} in {self.batch_ms} ms" if self.batch >= 0 else "Spark is starting")
        if self.sample is not None:
            facts.add_row("head .. tail", f"{format_size(self.sample.head)} .. {format_size(self.sample.written)}")
            facts.add_row("bytes held", format_size(self.sample.held))
            facts.add_row("bytes truncated", format_size(self.sample.head))
            facts.add_row("on disk (du)", format_size(self.sample.disk))
        facts.add_row("head held by", self.held_by)
        facts.add_row("store", self.store)
        return Group(bars, facts, *(Text(note, style="bold yellow") for note in self.notes[-4:]))


class View:
    """Shows the board in place on a terminal, else as a line every few seconds."""

    def __init__(self, board: Board, *, plain: bool) -> None:
        from rich.live import Live

        self.board = board
        self.console = Console()
        self._live = None if plain or not self.console.is_terminal else Live(console=self.console, refresh_per_second=5)
        self._printed_at = -5.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def note(self, text: str) -> None:
        """Something happened that people should see."""
        self.board.notes.append(text)
        if self._live is None:
            self.console.print(text, style="bold", highlight=False, soft_wrap=True)

    def show(self, at_s: float) -> None:
        if self._live is not None:
            self._live.update(self.board.render())
        elif at_s - self._printed_at >= 5:
            self._printed_at = at_s
            board, sample = self.board, self.board.sample
            line = "Spark is starting"
            if board.written_events and sample is not None:
                held = f"held {format_size(sample.held)}, truncated {format_size(sample.head)}"
                done = f"written {board.written_events:,}  processed {board.processed_rows:,}"
                line = f"{done}  {held}  head held by {board.held_by}"
            self.console.print(
                f"{at_s:5.0f} s  {line}",
                highlight=False,
                soft_wrap=True,
            )
