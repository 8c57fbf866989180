"""``python -m penstock.testing.simulation``: run seeds and report the results."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from penstock.testing.simulation.cluster.run import run_cluster_seed
from penstock.testing.simulation.config import at_pace, draw_config
from penstock.testing.simulation.control.run import run_control_seed
from penstock.testing.simulation.driver import RunResult, run_seed
from penstock.testing.simulation.ledgers.run import run_log_seed
from penstock.testing.simulation.rate_actors import with_rates
from penstock.testing.simulation.retention.run import run_retention_seed

_SHOWN = 60  # lines of history before an anomaly


def main(argv: list[str] | None = None) -> int:
    """Run the seeds. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of faults in each")
    parser.add_argument("--pace", type=float, default=1.0, help="factor by which users, faults and runs are slower")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no more seeds after this many real minutes")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument(
        "--retention-days",
        type=float,
        help="instead: this many virtual days of retention in each seed (docs/design/0010)",
    )
    parser.add_argument(
        "--control", action="store_true", help="instead: the control plane with late answers in each seed"
    )
    parser.add_argument(
        "--ledgers", action="store_true", help="instead: a log on BookKeeper and its owners in each seed"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="instead: three stores of a cluster and their clients in each seed"
    )
    parser.add_argument("--rates", action="store_true", help="scale the stream by rate, and let writers note times")
    chosen = parser.parse_args(argv)
    if chosen.control:
        return _control(chosen)
    if chosen.ledgers:
        return _ledgers(chosen)
    if chosen.cluster:
        return _cluster(chosen)
    if chosen.retention_days is not None:
        return _retention(chosen)
    began = time.perf_counter()
    results: list[RunResult] = []
    failed: list[int] = []
    for seed in _seeds(chosen):
        drawn = draw_config(seed)
        config = at_pace(with_rates(drawn) if chosen.rates else drawn, chosen.pace)
        result = run_seed(seed, seconds=chosen.seconds * chosen.pace, config=config)
        results.append(result)
        if result.anomalies:
            failed.append(seed)
            _report(result, short=chosen.keep_going)
            if not chosen.keep_going:
                break
    _summary(results, failed, time.perf_counter() - began)
    return 1 if failed else 0


def _seeds(chosen: argparse.Namespace) -> Iterator[int]:
    """Yield the chosen seeds in order, until ``--minutes`` have passed."""
    began = time.perf_counter()
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        if time.perf_counter() - began >= chosen.minutes * 60:
            return
        yield seed


def _retention(chosen: argparse.Namespace) -> int:
    """Run months of retention and report what each did and checked. Returns 1 if a promise was broken."""
    failed: list[int] = []
    seeds = 0
    for seed in _seeds(chosen):
        began = time.perf_counter()
        seeds += 1
        result = run_retention_seed(seed, days=chosen.retention_days)
        done = ", ".join(f"{count} {what}" for what, count in sorted(result.done.items()))
        sys.stdout.write(
            f"seed {seed}: {result.virtual_s / 86_400:.1f} days, {result.crashes} crashes, {result.moves} moves of heads, "
            f"{done}, {len(result.anomalies)} anomalies, {time.perf_counter() - began:.1f} s\n"
        )
        for anomaly in result.anomalies[:10]:
            sys.stdout.write(f"  {anomaly}\n"[:600])
        if result.anomalies:
            failed.append(seed)
            for line in result.last[-_SHOWN:]:
                sys.stdout.write(f"  {line[:200]}\n")
            if not chosen.keep_going:
                break
    sys.stdout.write(f"{seeds} seeds, {len(failed)} failed {failed[:20]}\n")
    return 1 if failed else 0


def _control(chosen: argparse.Namespace) -> int:
    """Run the control plane. Returns 1 if a promise was broken."""
    failed: list[int] = []
    done: dict[str, int] = {}
    seeds, virtual_s, crashes = 0, 0.0, 0
    for seed in _seeds(chosen):
        result = run_control_seed(seed, seconds=chosen.seconds)
        seeds += 1
        virtual_s, crashes = virtual_s + result.virtual_s, crashes + result.crashes
        for what, count in result.done.items():
            done[what] = done.get(what, 0) + count
        if result.anomalies:
            failed.append(seed)
            sys.stdout.write(f"seed {seed} FAILED: {len(result.anomalies)} anomalies\n")
            for line in (*result.anomalies[:10], *result.last[-_SHOWN:]):
                sys.stdout.write(f"  {line}"[:600] + "\n")
            if not chosen.keep_going:
                break
    text = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    sys.stdout.write(
        f"{seeds} seeds, {virtual_s / 3600:.2f} simulated hours, {crashes} crashes, {text}, "
        f"{len(failed)} failed {failed[:20]}\n"
    )
    return 1 if failed else 0


def _ledgers(chosen: argparse.Namespace) -> int:
    """Run logs on ledgers. Returns 1 if a promise was broken."""
    failed: list[int] = []
    done: dict[str, int] = {}
    seeds = 0
    for seed in _seeds(chosen):
        result = run_log_seed(seed, seconds=chosen.seconds)
        seeds += 1
        counted = {"owners": result.owners, "beside another": result.rivals, "ledgers": result.ledgers}
        counted |= {"acknowledgements": result.acknowledged, "replays": result.replays}
        done = {what: done.get(what, 0) + count for what, count in counted.items()}
        if result.anomalies:
            failed.append(seed)
            sys.stdout.write(f"seed {seed} FAILED: {len(result.anomalies)} anomalies\n")
            for line in (*result.anomalies[:10], *result.last[-_SHOWN:]):
                sys.stdout.write(f"  {line}"[:600] + "\n")
            if not chosen.keep_going:
                break
    text = ", ".join(f"{count} {what}" for what, count in done.items())
    sys.stdout.write(f"{seeds} seeds, {text}, {len(failed)} failed {failed[:20]}\n")
    return 1 if failed else 0


def _cluster(chosen: argparse.Namespace) -> int:
    """Run stores of a cluster. Returns 1 if a promise was broken."""
    failed: list[int] = []
    done: dict[str, int] = {}
    seeds = 0
    for seed in _seeds(chosen):
        result = run_cluster_seed(seed, seconds=chosen.seconds)
        seeds += 1
        counted = {"crashes": result.crashes, "openings": result.openings, "expired sessions": result.expired}
        counted |= {"late requests to tier 2": result.late, "steps": result.steps}
        counted |= {"acknowledgements": result.acked, "reads": result.reads}
        done = {what: done.get(what, 0) + count for what, count in counted.items()}
        if result.anomalies:
            failed.append(seed)
            sys.stdout.write(f"seed {seed} FAILED: {len(result.anomalies)} anomalies\n")
            for line in (*result.anomalies[:10], *result.last[-_SHOWN:]):
                sys.stdout.write(f"  {line}"[:600] + "\n")
            if not chosen.keep_going:
                break
    text = ", ".join(f"{count} {what}" for what, count in done.items())
    sys.stdout.write(f"{seeds} seeds, {text}, {len(failed)} failed {failed[:20]}\n")
    return 1 if failed else 0


def _report(result: RunResult, *, short: bool) -> None:
    out = sys.stdout.write
    out(f"seed {result.seed} FAILED: {len(result.anomalies)} anomalies\n")
    for anomaly in result.anomalies[:10]:
        out(f"  {anomaly}\n"[:600])
    if not short:
        out("last events:\n")
        for line in list(result.last)[-_SHOWN:]:
            out(f"  {line[:200]}\n")


def _summary(results: list[RunResult], failed: list[int], wall_s: float) -> None:
    virtual_s = sum(item.virtual_s for item in results)
    if any(item.counts.get("watermarks") for item in results):
        kinds = ("rate_scales split", "rate_scales merge", "stream_scales", "watermarks")
        counts = [f"{sum(item.counts.get(kind, 0) for item in results)} {kind.replace('_', ' ')}" for kind in kinds]
        sys.stdout.write(f"{', '.join(counts)}, {sum(item.bounded for item in results)} events read after a bound\n")
    sys.stdout.write(
        f"{len(results)} seeds, {virtual_s / 3600:.2f} simulated hours, {sum(item.crashes for item in results)} crashes, "
        f"{sum(item.recoveries for item in results)} recoveries, {sum(item.acked for item in results)} acknowledgements "
        f"and {sum(item.reads for item in results)} reads checked, {len(failed)} failed {failed[:20]}, "
        f"{wall_s:.1f} s ({virtual_s / max(wall_s, 1e-9):.0f} times real time)\n"
    )


if __name__ == "__main__":
    sys.exit(main())
