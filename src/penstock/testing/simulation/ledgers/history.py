"""What the owners of a simulated log were promised, and what later owners find."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class LogHistory:
    """Acknowledged frames of all owners, checked against each replay. ``note`` records an observation of the run."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.anomalies: list[str] = []
        self.last: list[str] = []
        self.acknowledged = 0
        self.replays = 0
        self._note = note
        self._acks: dict[int, tuple[int, bytes]] = {}
        """For each address its epoch and frame."""
        self._kept: dict[int, bytes] = {}
        """Frames that a replay has shown: each later one shows them too, acknowledged or not."""
        self._ends: dict[int, int] = {}
        """For each epoch the last address that its replay has shown."""
        self._truncated = 0

    def note(self, text: str) -> None:
        self._note(text)
        self.last.append(text)

    def violation(self, text: str) -> None:
        self.note(f"VIOLATION: {text}")
        self.anomalies.append(text)

    def truncating(self, upto: int) -> None:
        """A truncation is asked for: frames up to there may be missing from now on."""
        self._truncated = max(self._truncated, upto)

    def acked(self, epoch: int, address: int, frame: bytes) -> None:
        self.acknowledged += 1
        self._note(f"ack {epoch} {address} {frame[:12]!r}")
        before = self._acks.get(address)
        if before is not None and before[1] != frame:
            self.violation(
                f"address {address} was acknowledged twice, with other bytes, in epochs {before[0]}, {epoch}"
            )
        for later, end in self._ends.items():
            if later > epoch and address > end:
                self.violation(f"epoch {epoch} acknowledged {address} after epoch {later} had replayed up to {end}")
        self._acks[address] = (epoch, frame)

    def replayed(self, epoch: int, found: Sequence[tuple[int, bytes]]) -> None:
        """An owner has read the whole log. Frames of later epochs may be missing: it may be deposed already."""
        self.replays += 1
        self.note(f"replay {epoch}: {len(found)} frames")
        addresses = [address for address, _ in found]
        if addresses and addresses != list(range(addresses[0], addresses[0] + len(addresses))):
            self.violation(f"replay of epoch {epoch} has gaps: {addresses[:60]}")
        frames = dict(found)
        if len(set(frames.values())) < len(found):
            self.violation(f"replay of epoch {epoch} has a frame twice")
        for address, (acked_in, frame) in self._acks.items():
            if acked_in < epoch and address > self._truncated and frames.get(address) != frame:
                self.violation(f"replay of epoch {epoch} lacks {address}, which epoch {acked_in} acknowledged")
        for address, frame in self._kept.items():
            if address > self._truncated and frames.get(address) != frame and epoch > max(self._ends, default=0):
                self.violation(f"replay of epoch {epoch} lacks {address}, which an earlier replay has shown")
        if epoch > max(self._ends, default=0):
            self._kept.update(frames)
            self._ends[epoch] = max(addresses, default=0) or max(self._ends.values(), default=0)
