"""Whatever is changed in the files about a log, both verifiers find it with the public key alone."""

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from evidence_world import VERIFY, Log, verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.cases.ledger import ledger_lines, ledger_of
from penstock.core.evidence import documents as d
from penstock.core.evidence.verify import verify
from penstock.model.errors import InvalidArgumentError

KINDS = ("truncate", "hold", "erase", "policy", "release")
logs = st.lists(st.sampled_from(KINDS), min_size=1, max_size=30)


def log_of(kinds, seed="one"):
    log = Log(seed)
    for kind in ("erase", "hold", "truncate", *kinds):
        log.add(kind)
    return log


@settings(max_examples=25)
@given(kinds=logs, seed=st.integers(0, 10**6))
def test_what_a_store_writes_holds(kinds, seed):
    log = log_of(kinds)
    before = 1 + seed % len(log.entries)
    files, keys = log.everything(before), [log.key.text]
    assert verdict(files, keys)
    assert verdict(files, keys, {"mine": files["old"]})
    for name, data in files.items():
        assert verdict({name: data}, keys)
    # Later exports need not begin at the first entry.
    start = seed % (len(log.entries) + 1)
    assert verdict({"part": log.export(start=start), "new": files["new"]}, keys)


# --- tampering: each function returns files of which something must not hold ----------------------------------------


def lines(data):
    return data.split(b"\n")


def edit(log, rng):
    """Another character in an entry."""
    name = rng.choice(["export", "erasure", "disposal", "hold"])
    data = bytearray(log[name])
    place = rng.randrange(data.index(b'"kind"'), len(data) - 1)
    data[place] = rng.choice([byte for byte in b'09afAZ{}",: +/=' if byte != data[place]])
    return {**log, name: bytes(data)}


def flip(log, rng):
    """Another bit in any byte of any file."""
    name = rng.choice(sorted(log))
    data = bytearray(log[name])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return {**log, name: bytes(data)}


def drop(log, rng):
    found = lines(log["export"])
    del found[rng.randrange(1, len(found) - 1)]
    return {**log, "export": b"\n".join(found)}


def reorder(log, rng):
    found = lines(log["export"])
    one, two = rng.sample(range(1, len(found) - 1), 2)
    found[one], found[two] = found[two], found[one]
    return {**log, "export": b"\n".join(found)}


def repeat(log, rng):
    found = lines(log["export"])
    place = rng.randrange(1, len(found) - 1)
    return {**log, "export": b"\n".join([*found[: place + 1], *found[place:]])}


def truncate(log, rng):
    name = rng.choice(sorted(log))
    return {**log, name: log[name][: rng.randrange(len(log[name]))]}


def cut_end(log, rng):
    found = lines(log["export"])
    return {**log, "export": b"\n".join([*found[: rng.randrange(1, len(found) - 1)], b""])}


def cut_head(log, rng):
    found = lines(log["export"])
    return {**log, "export": b"\n".join([found[0], *found[rng.randrange(2, len(found)) :]])}


def back_date(log, rng):
    found = lines(log["export"])
    place = rng.randrange(1, len(found) - 1)
    entry = json.loads(found[place])
    entry["at_ms"] -= 1
    found[place] = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return {**log, "export": b"\n".join(found)}


def restate(log, rng):
    """Another statement above the same entries."""
    name = rng.choice(["erasure", "disposal", "hold"])
    document = json.loads(log[name])
    if name == "erasure":
        document["statement"]["receipt"]["where"]["events"] += 1
    elif name == "disposal":
        document["statement"]["bytes"] += 1
    else:
        document["statement"]["state"] = "lifted"
    return {**log, name: d.line(document).encode()}


def omit_proof(log, rng):
    document = json.loads(log["disposal"])
    del document["entries"][rng.randrange(len(document["entries"]))]
    return {**log, "disposal": d.line(document).encode()}


def twice(log, rng):
    document = json.loads(log["disposal"])
    document["entries"].append(rng.choice(document["entries"]))
    return {**log, "disposal": d.line(document).encode()}


def change_ledger(log, rng):
    """An erasure less, or another one, in a ledger whose own digest fits."""
    found = ledger_of(log["ledger"].splitlines())
    kept = list(found.erasures)
    other = kept.pop(rng.randrange(len(kept)))
    if rng.random() < 0.5:
        kept.append(replace(other, who="bob"))
    return {**log, "ledger": b"".join(line + b"\n" for line in ledger_lines(replace(found, erasures=kept)))}


def cut_ledger(log, rng):
    found = lines(log["ledger"])
    del found[rng.randrange(len(found) - 1)]
    return {**log, "ledger": b"\n".join(found)}


TAMPERED = [
    change_ledger, cut_ledger, edit, flip, drop, reorder, repeat, truncate, cut_end, cut_head, back_date, restate, omit_proof, twice
]  # fmt: skip


@pytest.mark.parametrize("tampered", TAMPERED)
@settings(max_examples=40)
@given(kinds=logs, seed=st.integers(0, 10**9))
def test_every_change_of_a_file_is_found(tampered, kinds, seed):
    log, rng = log_of(kinds), random.Random(seed)
    before = rng.randrange(1, len(log.entries) + 1)
    files = log.everything(before)
    assert not verdict(tampered(files, rng), [log.key.text])


@settings(max_examples=25)
@given(kinds=logs, seed=st.integers(0, 10**9))
def test_the_files_of_another_store_do_not_hold(kinds, seed):
    log, other, rng = log_of(kinds), log_of(kinds, "two"), random.Random(seed)
    before = rng.randrange(1, len(log.entries) + 1)
    files, foreign = log.everything(before), other.everything(before)
    name = rng.choice(sorted(files))
    assert not verdict({name: foreign[name]}, [log.key.text])
    assert not verdict({**files, name: foreign[name]}, [log.key.text])
    # Entries of one store under the checkpoint of the other, both trusted.
    mixed = lines(files["export"])[0] + b"\n" + foreign["export"].split(b"\n", 1)[1]
    assert not verdict({"export": mixed}, [log.key.text, other.key.text])
    document, strange = json.loads(files["erasure"]), json.loads(foreign["erasure"])
    document["entries"] = strange["entries"]
    assert not verdict({"erasure": d.line(document).encode()}, [log.key.text, other.key.text])


@settings(max_examples=25)
@given(kinds=logs, seed=st.integers(0, 10**9))
def test_a_fork_is_found_although_the_right_key_has_signed_it(kinds, seed):
    """The operator has the key, and shows two people different logs."""
    rng = random.Random(seed)
    log, fork = log_of(kinds), log_of(kinds[: rng.randrange(len(kinds))])
    seen = log.checkpoint().encode()
    fork.add("scale")
    for _ in range(rng.randrange(40)):
        fork.add(rng.choice(KINDS))
    files, keys = fork.everything(rng.randrange(1, len(fork.entries) + 1)), [log.key.text]
    assert verdict(files, keys)
    assert not verdict({**files, "seen": seen}, keys)
    assert not verdict(files, keys, {"seen": seen})
    if len(fork.entries) >= len(log.entries):
        proof = fork.nodes().consistency(len(log.entries), len(fork.entries))
        forged = d.consistency(seen.decode(), fork.checkpoint(), proof, [])
        assert not verdict({"proof": d.line(forged).encode()}, keys)


@settings(max_examples=25)
@given(kinds=logs, seed=st.integers(0, 10**9))
def test_a_log_that_lost_its_newest_entries_is_found_by_a_known_checkpoint(kinds, seed):
    log, rng = log_of(kinds), random.Random(seed)
    size, keys = len(log.entries), [log.key.text]
    before = rng.randrange(1, size)
    known = {"mine": log.checkpoint().encode()}
    assert not verdict({"export": log.export(end=before)}, keys, known)
    assert not verdict({"new": log.checkpoint(before).encode()}, keys, known)
    linked = {"new": log.checkpoint(before).encode(), "proof": log.consistency(before, size)}
    assert verdict(linked, keys, known)
    assert not verdict({"export": log.export(end=before), "cut": log.checkpoint(before).encode()}, keys, known)


def test_a_known_checkpoint_holds_only_beside_files_of_its_log():
    log, other = log_of(("erase",)), Log("other")
    other.add("erase")
    keys, known = [log.key.text, other.key.text], {"mine": log.checkpoint().encode()}
    for data in (other.export(), other.checkpoint().encode(), other.erasure()):
        assert verdict({"file": data}, keys)
        assert not verdict({"file": data}, keys, known)
    assert verdict({"file": log.erasure()}, keys, known)
    assert verdict({"file": other.export(), "mine": log.export()}, keys, known)


def test_evidence_of_an_erasure_states_nothing_besides_its_receipt():
    log = log_of(("erase",))
    number = log.numbers(("erase",))[0]
    assert verdict({"file": log.evidence("erasure", {"receipt": log.receipts[0]}, [number])}, [log.key.text])
    more = {"receipt": log.receipts[0], "backups": "wiped"}
    assert not verdict({"file": log.evidence("erasure", more, [number])}, [log.key.text])


@settings(max_examples=25)
@given(kinds=logs, seed=st.integers(0, 10**9))
def test_another_key_convinces_nobody_unless_the_old_one_has_signed_it(kinds, seed):
    log, thief, rng = log_of(kinds), log_of(kinds), random.Random(seed)
    old = log.key.text
    thief._secret = [thief._key(7)]
    name = rng.choice(sorted(thief.everything(1)))
    assert not verdict({name: thief.everything(1)[name]}, [old])
    log.rotate()
    log.add("key")
    assert verdict({**log.everything(1), "keys": log.history()}, [old])
    # Nothing hands the old key to those who know the new one.
    assert verdict(log.everything(1), [log.key.text])
    forged = [{**log.rotations[0], "new": thief.key.text}]
    thief.rotations = forged
    assert not verdict({name: thief.everything(1)[name], "keys": thief.history()}, [old])
    thief.origin = thief.state.origin
    assert not verdict({"keys": thief.history()}, [old])


def test_a_key_that_was_copied_wrongly_is_refused():
    log = log_of(())
    wrong = log.key.text.replace("+", "+0", 1)
    with pytest.raises(InvalidArgumentError):
        verify({}, [wrong])


@pytest.mark.parametrize("data", [b"", b"{", b"{}\n", b"\xff\xfe", b"[]", b'{"penstock":"export"}\n', b"\n\n\n"])
def test_files_of_anyone_are_refused_in_words(data):
    log = log_of(())
    assert not verdict({"file": data}, [log.key.text])


def test_the_program_prints_what_holds_and_exits_with_9_where_something_does_not(tmp_path):
    log = log_of(("truncate",))
    names = []
    for name, data in log.everything(2).items():
        (tmp_path / name).write_bytes(data)
        names.append(str(tmp_path / name))
    call = [sys.executable, str(VERIFY), *names, "--public-key", log.key.text, "--known", names[0]]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("holds: ") == len(names)
    (tmp_path / "export").write_bytes(log.export()[:-1])
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 9
    assert "DOES NOT HOLD" in done.stdout


def test_the_program_is_short_and_needs_no_package_of_ours():
    text = VERIFY.read_text()
    assert len(text.splitlines()) < 300
    assert "import penstock" not in text
    assert "from penstock" not in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_the_packages_of_gos_checksum_database_read_checkpoints_and_proofs(tmp_path):
    log = log_of(("truncate",) * 20)
    files = log.everything(7)
    (tmp_path / "key").write_text(log.key.text + "\n")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    program = VERIFY.parent / "verify_checkpoint"
    call = ["go", "run", ".", *(str(tmp_path / name) for name in ("key", "new", "consistency"))]
    done = subprocess.run(call, cwd=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"the log of {len(log.entries)} entries continues that of 7 entries" in done.stdout
    (tmp_path / "new").write_bytes(files["new"].replace(f"\n{len(log.entries)}\n".encode(), b"\n8\n"))
    assert subprocess.run(call, cwd=program, capture_output=True, check=False).returncode != 0
