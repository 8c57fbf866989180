"""Two owners, three bookies and one coordinator: every order of their steps, searched to the end.

The steps are those of taking a container over (freeze, fence, extend), of writing, of rolling to a new ledger, and of
publishing and deleting. A state is a value; ``Model.steps`` yields the states that can follow it. Nothing obliges a step
to happen: an actor may stop forever, and an answer may be late or lost.

Entry 0 of a ledger is its header; ``entries[i]`` is what its writer sent as entry ``i``. TCP keeps the order of one
connection, so a bookie has a prefix of them (``stored``), and the writer has seen a prefix of its answers (``seen``).
``extra`` has a bit for each entry that a recovery added. An entry is acknowledged once two of three bookies have answered
for it and for all before it. Bookies are alike: a state keeps them sorted, which leaves a sixth of the states.

A ledger that the record does not name yet is seen by its maker alone. So a ledger and its header on all bookies are made
in one step, as late as possible. It makes no difference that the log makes the next ledger before it closes the current
one.

To freeze before fencing is no rule that safety needs: without it the model finds nothing lost either, since the record
that extends the list is compared. It keeps the list from growing while its ledgers are fenced, so that a takeover ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

QUORUM = 2  # of three bookies: answers that acknowledge an entry; as many make a fence certain
HEADER = 0
OPEN, RECOVERING, CLOSED = 0, 1, 2
ROBOT = 2
"""The actor after the two owners: BookKeeper's own recovery of ledgers that look abandoned."""


@dataclass(frozen=True)
class Rules:
    """What the protocol does. A field set to False plants a bug."""

    compares: bool = True
    """The record changes only if it is as the owner knows it; else an owner overwrites it."""
    begins_with_header: bool = True
    """A ledger is used when all bookies have its header; else at once, and "nothing here" counts as an answer to a
    fence, though a bookie that restarts then forgets the fence."""
    fences: bool = True
    """A recovery fences the ledger; else it only reads it."""
    asks_quorum: bool = True
    """An entry does not exist when two bookies lack it; else when one does."""
    adds_again: bool = True
    """A recovery adds what it found to a quorum; else it takes what it found as written."""
    closes_at_confirmed: bool = True
    """A roll closes the ledger behind the last acknowledged entry; else behind the last one sent."""
    ignores_late_answers: bool = True
    """Answers that come after the decision to close acknowledge nothing."""
    keeps_what_was_recovered: bool = True
    """An owner whose ledger was recovered by another sends only the rest again; else all it had not acknowledged."""
    publishes_first: bool = True
    """An object is deleted after the record no longer names it; else before."""


class Ledger(NamedTuple):
    writer: int
    entries: tuple[tuple[int, int], ...]
    """(value, last entry known to be acknowledged when this one was sent)."""
    state: int = OPEN
    last: int = -1


class Copy(NamedTuple):
    """What one bookie has of one ledger."""

    stored: int = 0
    seen: int = 0
    refused: bool = False
    """Its writer was answered that the ledger is fenced."""
    fenced: bool = False
    extra: int = 0

    def has(self, entry: int) -> bool:
        return entry < self.stored or bool(self.extra >> entry & 1)


class Bookie(NamedTuple):
    copies: tuple[Copy, ...]
    answered: tuple[bool, bool, bool] = (False, False, False)
    """Whether it has answered the current question of each actor's recovery."""


class Listed(NamedTuple):
    """A ledger in the coordinator's record. ``last``: -1 while it is not known. ``base``: values before it."""

    ledger: int
    last: int
    base: int


class Record(NamedTuple):
    """The container's record, changed by compare-and-set of ``version``."""

    version: int
    epoch: int
    listed: tuple[Listed, ...]
    published: int
    """The object with the first values; -1: none yet."""


class Search(NamedTuple):
    """A recovery under way. ``step``: mark, fence, read, add, close, done. ``entry``: the one it is about; while it
    fences, the last one known to be acknowledged; when it is done, the ledger's last."""

    ledger: int
    step: str
    entry: int = 0


class Owner(NamedTuple):
    """``at``: what it does next. ``record`` is the record as this owner knows it."""

    at: str
    epoch: int = -1
    record: Record | None = None
    search: Search | None = None
    current: int = -1
    confirmed: int = 0
    """The last entry of the current ledger that it has acknowledged."""
    closing: int = 0
    """The last entry of a ledger that it rolls away from, as decided."""
    unsent: tuple[int, ...] = ()
    garbage: int = -1
    appends: int = 0
    rolls: int = 0
    publications: int = 0
    takes: int = 1
    """How often it may yet append, roll, publish, and take the container over."""


class State(NamedTuple):
    record: Record
    ledgers: tuple[Ledger, ...]
    bookies: tuple[Bookie, ...]
    owners: tuple[Owner, ...]
    robot: Search | None
    objects: tuple[tuple[int, ...] | None, ...]
    """The values in each object of tier 2; None: deleted."""
    acknowledged: tuple[int, ...] = ()
    wrong: str = ""


def begin(
    *,
    appends: int = 1,
    rolls: int = 0,
    publications: int = 0,
    rival: bool = True,
    robot: bool = False,
    again: bool = False,
    header: bool = True,
) -> State:
    """Owner 0 serves, in a ledger whose header is everywhere, or (without ``header``) nowhere yet.

    ``rival``: owner 1 may take over. ``robot``: BookKeeper may recover the first ledger meanwhile. ``again``: owner 0 may
    take the container back.
    """
    record = Record(1, 1, (Listed(0, -1, 0),), -1)
    first = Owner("serve", 1, record, None, 0, appends=appends, rolls=rolls, publications=publications)
    second = Owner("idle", appends=1, publications=publications, takes=int(rival))
    return State(
        record,
        (Ledger(0, ((HEADER, -1),)),),
        (Bookie((Copy(1, 1) if header else Copy(),)),) * 3,
        (first._replace(takes=int(again)), second),
        Search(0, "mark") if robot else None,
        (),
    )


def put(values: tuple, place: int, value: object) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


class Model:
    """The states that can follow a state, by the rules given. What happens to the record is decided in methods of their
    own, so that a test can replace them by the decisions of ``core.cluster.ownership``."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def steps(self, state: State) -> Iterator[State]:
        yield from self._copies(state)
        if state.robot is not None:
            for search, after in self._recover(state, ROBOT, state.robot):
                yield after._replace(robot=None if search.step == "done" else search)
        for who, owner in enumerate(state.owners):
            step = getattr(self, f"_{owner.at}", None)
            if step is not None:
                yield from step(state, who, owner)

    # --- bookies and their answers to writers ------------------------------------------------------------------------

    def _copies(self, state: State) -> Iterator[State]:
        """A bookie takes the next entry of a ledger, or refuses it; or its answer reaches the writer."""
        for number, ledger in enumerate(state.ledgers):
            writer = state.owners[ledger.writer]
            listens = writer.current == number and (writer.at != "close" or not self.rules.ignores_late_answers)
            if not listens and ledger.state == CLOSED:
                continue  # nobody looks at these copies any more
            last = None
            for place, bookie in enumerate(state.bookies):
                if bookie == last:
                    continue
                last = bookie
                copy = bookie.copies[number]
                if copy.stored < len(ledger.entries) and not copy.refused:
                    change = copy._replace(refused=True) if copy.fenced else copy._replace(stored=copy.stored + 1)
                    yield with_copy(state, place, number, change)
                if copy.seen < copy.stored and listens:
                    yield self._seen(with_copy(state, place, number, copy._replace(seen=copy.seen + 1)), number)

    def _seen(self, state: State, number: int) -> State:
        """Acknowledge what the writer now knows to be stored."""
        ledger = state.ledgers[number]
        who = ledger.writer
        owner = state.owners[who]
        seen = sorted(bookie.copies[number].seen for bookie in state.bookies)[-QUORUM] - 1
        if owner.at not in ("serve", "collect", "close") or seen <= owner.confirmed:
            return state
        done = tuple(value for value, _ in ledger.entries[owner.confirmed + 1 : seen + 1])
        state = with_owner(state, who, owner._replace(confirmed=seen))
        return acknowledge(state, owner.epoch, done)

    # --- recovery of a ledger ----------------------------------------------------------------------------------------

    def _recover(self, state: State, actor: int, search: Search) -> Iterator[tuple[Search, State]]:
        ledger = state.ledgers[search.ledger]

        def then(step: str, entry: int, after: State = state) -> tuple[Search, State]:
            """Ask the next question."""
            return Search(search.ledger, step, entry), ask_anew(after, actor)

        if ledger.state == CLOSED:
            yield then("done", ledger.last)
        elif search.step == "mark":
            marked = with_ledger(state, search.ledger, ledger._replace(state=RECOVERING))
            yield then("fence" if self.rules.fences else "read", 0 if self.rules.fences else 1, marked)
        elif search.step == "close":
            closed = with_ledger(state, search.ledger, ledger._replace(state=CLOSED, last=search.entry))
            yield then("done", search.entry, closed)
        else:
            last = None
            for place, bookie in enumerate(state.bookies):
                if bookie != last and not bookie.answered[actor]:
                    last = bookie
                    yield from self._answer(state, actor, search, place, then)

    def _answer(
        self, state: State, actor: int, search: Search, place: int, then: Callable[..., tuple[Search, State]]
    ) -> Iterator[tuple[Search, State]]:
        """One more bookie answers the current question of a recovery."""
        ledger = state.ledgers[search.ledger]
        bookie = state.bookies[place]
        copy = bookie.copies[search.ledger]
        answers = 1 + sum(item.answered[actor] for item in state.bookies)
        entry = search.entry
        fenced = copy._replace(fenced=True) if self.rules.fences else copy
        answered = put(bookie.answered, actor, True)

        def after(change: Copy) -> State:
            changed = Bookie(put(bookie.copies, search.ledger, change), answered)
            return state._replace(bookies=tuple(sorted(put(state.bookies, place, changed))))

        if search.step == "add":
            added = copy if copy.has(entry) else copy._replace(extra=copy.extra | 1 << entry)
            yield then("read", entry + 1, after(added)) if answers >= QUORUM else (search, after(added))
            return
        newest = max(copy.stored - 1, copy.extra.bit_length() - 1)
        if newest < 0 and self.rules.begins_with_header:
            return
        for change in (fenced,) if newest >= 0 else (fenced, copy):
            if search.step == "fence":
                known = max(entry, ledger.entries[newest][1]) if newest >= 0 else entry
                yield (
                    then("read", known + 1, after(change))
                    if answers >= QUORUM
                    else (
                        search._replace(entry=known),
                        after(change),
                    )
                )
            elif copy.has(entry):
                yield then(
                    "add" if self.rules.adds_again else "read", entry + (not self.rules.adds_again), after(change)
                )
            elif answers >= (QUORUM if self.rules.asks_quorum else 1):
                yield then("close", entry - 1, after(change))
            else:
                yield search, after(change)

    # --- taking over -------------------------------------------------------------------------------------------------

    def _idle(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        if owner.takes:
            record = state.record
            fresh = Owner(
                "freeze",
                self.frozen(record).epoch,
                record,
                appends=owner.appends,
                publications=owner.publications,
                takes=owner.takes - 1,
            )
            yield with_owner(state, who, fresh)

    _stopped = _idle

    def _freeze(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        assert owner.record is not None
        yield self._set(state, who, owner._replace(at="fence"), owner.record)

    def _set(self, state: State, who: int, then: Owner, wanted: Record) -> State:
        """A compare-and-set of the record to ``wanted``, at the owner's epoch. An owner that loses it stops."""
        if self.rules.compares and state.record.version != wanted.version:
            assert then.at == "fence" or self.is_deposed(wanted, state.record), "only a later owner is in the way"
            return with_owner(state, who, stopped(then))
        record = wanted._replace(version=wanted.version + 1, epoch=then.epoch)
        return with_owner(state._replace(record=record), who, then._replace(record=record))

    def _fence(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        """Recover each listed ledger whose end is not known, the newest first."""
        assert owner.record is not None
        unknown = self.unfenced(owner.record)
        if not unknown:
            yield self._created(state, who, owner)
            return
        search = owner.search or Search(unknown[0], "mark")
        for more, after in self._recover(state, who, search):
            change = owner._replace(search=more)
            if more.step == "done":
                change = owner._replace(search=None, record=self.ended(owner.record, unknown[0], more.entry))
            yield with_owner(after, who, change)

    def _extend(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        """Name the new ledger in the record, then load what the record leads to."""
        assert owner.record is not None
        yield self._set(state, who, owner._replace(at="load"), self.extended(owner.record, owner.current))

    def _load(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        """Read what the record leads to. All that was acknowledged must be in it, once and in order."""
        assert owner.record is not None
        content, wrong = contents(state, owner.record)
        # An owner that is deposed already may miss what its successor acknowledged.
        missing = [value for value in state.acknowledged if value // 10 <= owner.epoch and value not in content]
        if missing:
            wrong = wrong or f"acknowledged and lost: {missing}"
        twice = [value for value in owner.unsent if value in content]
        if twice:
            wrong = wrong or f"written and sent again: {twice}"
        after = state._replace(wrong=state.wrong or wrong)
        yield sent(after, who, owner._replace(at="serve", unsent=()), owner.unsent)

    # --- serving -----------------------------------------------------------------------------------------------------

    def _serve(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        if owner.appends:
            value = 10 * owner.epoch + owner.appends
            yield sent(state, who, owner._replace(appends=owner.appends - 1), (value,))
        if owner.rolls:
            yield with_owner(state, who, owner._replace(at="close", closing=owner.confirmed, rolls=owner.rolls - 1))
        elif any(bookie.copies[owner.current].refused for bookie in state.bookies):
            yield with_owner(state, who, owner._replace(at="close", closing=owner.confirmed))
        if owner.publications:
            yield self._publish(state, who, owner)

    def _publish(self, state: State, who: int, owner: Owner) -> State:
        """Write an object with all that is acknowledged, and name it in the record instead of the one before. The record
        forgets ledgers that are wholly in it."""
        assert owner.record is not None
        held, _ = contents(state, owner.record, until=owner.confirmed)
        before = owner.record.published
        objects = (*state.objects, held)
        if not self.rules.publishes_first and before >= 0:
            objects = put(objects, before, None)
        then = owner._replace(at="collect", publications=owner.publications - 1, garbage=before)
        wanted = self.published(owner.record, len(state.objects), len(held))
        return self._set(state._replace(objects=objects), who, then, wanted)

    def _collect(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        """Delete what the record no longer names, however late."""
        objects = put(state.objects, owner.garbage, None) if owner.garbage >= 0 else state.objects
        yield with_owner(state._replace(objects=objects), who, owner._replace(at="serve", garbage=-1))

    def _close(self, state: State, who: int, owner: Owner) -> Iterator[State]:
        """Roll away from the current ledger: close it behind what is acknowledged. If another recovers it, finish that
        recovery: what it keeps is written."""
        ledger = state.ledgers[owner.current]
        last = owner.closing if self.rules.closes_at_confirmed else len(ledger.entries) - 1
        if ledger.state == OPEN:
            closed = with_ledger(state, owner.current, ledger._replace(state=CLOSED, last=last))
            yield self._rolled(closed, who, owner, last)
        elif owner.search is None:
            # The record says whether it still is the owner.
            after = owner._replace(search=Search(owner.current, "mark"))
            yield with_owner(state, who, after if self.is_owner(owner.record, state.record) else stopped(owner))
        else:
            for more, after in self._recover(state, who, owner.search):
                if more.step == "done":
                    yield self._rolled(after, who, owner, more.entry)
                else:
                    yield with_owner(after, who, owner._replace(search=more))

    def _rolled(self, state: State, who: int, owner: Owner, last: int) -> State:
        assert owner.record is not None
        entries = state.ledgers[owner.current].entries
        kept = last if self.rules.keeps_what_was_recovered else min(last, owner.confirmed)
        kept = self.kept(len(entries) - 1, owner.confirmed, kept)
        unsent = tuple(value for value, _ in entries[kept + 1 :])
        change = owner._replace(record=self.ended(owner.record, owner.current, last), unsent=unsent, search=None)
        return self._created(state, who, change)

    def _created(self, state: State, who: int, owner: Owner) -> State:
        """Make a ledger. Its header is on all bookies, or (planted) on its way to them."""
        copy = Copy(1, 1) if self.rules.begins_with_header else Copy()
        bookies = (bookie._replace(copies=(*bookie.copies, copy)) for bookie in state.bookies)
        change = owner._replace(at="extend", current=len(state.ledgers), confirmed=0)
        made = state._replace(ledgers=(*state.ledgers, Ledger(who, ((HEADER, -1),))), bookies=tuple(sorted(bookies)))
        return with_owner(made, who, change)

    # --- what happens to the record ----------------------------------------------------------------------------------

    def frozen(self, record: Record) -> Record:
        return record._replace(epoch=record.epoch + 1)

    def unfenced(self, record: Record) -> list[int]:
        """Ledgers that may be open, the newest first."""
        return [item.ledger for item in reversed(record.listed) if item.last < 0]

    def ended(self, record: Record, ledger: int, last: int) -> Record:
        listed = (item._replace(last=last) if item.ledger == ledger else item for item in record.listed)
        return record._replace(listed=tuple(listed))

    def extended(self, record: Record, ledger: int) -> Record:
        """A ledger without values is not needed once the next one knows how many come before."""
        before = record.listed[-1]
        kept = record.listed if before.last else record.listed[:-1]
        return record._replace(listed=(*kept, Listed(ledger, -1, before.base + before.last)))

    def published(self, record: Record, place: int, values: int) -> Record:
        """The object at ``place`` holds the first ``values`` values."""
        kept = tuple(item for item in record.listed if item.last < 0 or item.base + item.last > values)
        return record._replace(listed=kept, published=place)

    def kept(self, sent: int, confirmed: int, last: int) -> int:
        """The last entry of a ledger that is not sent again: of ``sent`` entries, ``confirmed`` were acknowledged
        before it was closed at ``last``."""
        return last

    def is_owner(self, mine: Record, found: Record) -> bool:
        """Whether the owner that wrote ``mine`` goes on."""
        return mine.epoch == found.epoch

    def is_deposed(self, wanted: Record, found: Record) -> bool:
        """Whether a record that refuses the change to ``wanted`` is that of a later owner."""
        return found.epoch != wanted.epoch


def with_owner(state: State, who: int, owner: Owner) -> State:
    return state._replace(owners=put(state.owners, who, owner))


def with_ledger(state: State, number: int, ledger: Ledger) -> State:
    return state._replace(ledgers=put(state.ledgers, number, ledger))


def with_copy(state: State, place: int, number: int, copy: Copy) -> State:
    bookie = state.bookies[place]
    changed = bookie._replace(copies=put(bookie.copies, number, copy))
    return state._replace(bookies=tuple(sorted(put(state.bookies, place, changed))))


def ask_anew(state: State, actor: int) -> State:
    bookies = (bookie._replace(answered=put(bookie.answered, actor, False)) for bookie in state.bookies)
    return state._replace(bookies=tuple(sorted(bookies)))


def stopped(owner: Owner) -> Owner:
    return Owner("stopped", appends=owner.appends, publications=owner.publications, takes=owner.takes)


def sent(state: State, who: int, owner: Owner, values: tuple[int, ...]) -> State:
    ledger = state.ledgers[owner.current]
    entries = ledger.entries + tuple((value, owner.confirmed) for value in values)
    return with_owner(with_ledger(state, owner.current, ledger._replace(entries=entries)), who, owner)


def acknowledge(state: State, epoch: int, values: tuple[int, ...]) -> State:
    """Acknowledge values. A newer owner that has loaded already must know each of them."""
    wrong = state.wrong
    for owner in state.owners:
        if owner.epoch > epoch and owner.at in ("serve", "collect", "close") and owner.record is not None:
            content, _ = contents(state, owner.record)
            lost = [value for value in values if value not in content]
            wrong = wrong or (f"acknowledged by a deposed owner: {lost}" if lost else "")
    return state._replace(acknowledged=state.acknowledged + values, wrong=wrong)


def contents(state: State, record: Record, *, until: int = 0) -> tuple[tuple[int, ...], str]:
    """The values that a record leads to, and what is wrong with them. ``until``: the last entry of the open ledger that
    counts."""
    held: tuple[int, ...] = ()
    if record.published >= 0:
        found = state.objects[record.published]
        if found is None:
            return (), "the record names a deleted object"
        held = found
    for item in record.listed:
        ledger = state.ledgers[item.ledger]
        last = item.last if item.last >= 0 else until
        for entry in range(1, last + 1):
            if sum(bookie.copies[item.ledger].has(entry) for bookie in state.bookies) < QUORUM:
                return held, "a ledger ends behind what a quorum has"
            if item.base + entry > len(held):
                held = (*held, ledger.entries[entry][0])
    return held, f"twice: {held}" if len(set(held)) < len(held) else ""


@dataclass(frozen=True)
class Found:
    """``wrong``: the nearest violation, and the ``path`` to it; empty if no state of ``states`` has one."""

    states: int
    wrong: str = ""
    path: tuple[State, ...] = ()


def explore(first: State, rules: Rules, *, most: int = 10_000_000) -> Found:
    """Visit every state that can follow ``first``, the nearest first. Raises RuntimeError beyond ``most`` states."""
    model = Model(rules)
    came: dict[State, State | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if state.wrong:
            path = [state]
            while (before := came[path[-1]]) is not None:
                path.append(before)
            return Found(len(came), state.wrong, tuple(reversed(path)))
        if len(came) > most:
            raise RuntimeError(f"more than {most} states")
        for after in model.steps(state):
            if after not in came:
                came[after] = state
                waiting.append(after)
    return Found(len(came))
