"""Fuzz every decoder, print a line for each, and fail with the first find of each kind.

python -m tests.fuzz --executions 1000000      about ten minutes on one core
python -m tests.fuzz --only wire --seed 7
python -m tests.fuzz --engine atheris          guided by coverage; needs `pip install atheris`
python -m tests.fuzz --replay finds/wire-1f2e  one input again
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from tests.fuzz.runner import check, run, save
from tests.fuzz.targets import Target, targets


def main() -> int:
    known = {target.name: target for target in targets()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=1_000_000, help="inputs for each decoder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(known))
    parser.add_argument("--engine", choices=["own", "atheris"], default="own")
    parser.add_argument(
        "--finds", type=Path, default=Path("data/fuzz"), help="where inputs are kept that broke something"
    )
    parser.add_argument("--replay", type=Path, help="an input that was kept; its name begins with the decoder's")
    given = parser.parse_args()
    if given.replay is not None:
        return _replay(known, given.replay)
    wanted = [known[name] for name in given.only or known]
    if given.engine == "atheris":
        return max(_guided(target, given.executions, given.seed, given.finds) for target in wanted)
    failed = False
    for target in wanted:
        report = run(target, executions=given.executions, seed=given.seed)
        rate = report.executions / max(report.took_s, 1e-9)
        _say(
            f"{'FAIL' if report.finds else 'ok  '}  {report.target:<12} {report.executions:>10,} inputs"
            f"  {report.decoded:>9,} decoded {report.refused:>9,} refused  {rate:>9,.0f}/s"
            f"  slowest {report.slowest_s * 1000:6.1f} ms  memory +{report.grown_bytes >> 20} MiB"
        )
        for find in report.finds:
            failed = True
            _say(f"{find.what}\n  kept as {save(find, given.finds)}: {find.data[:80]!r}")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _replay(known: dict[str, Target], path: Path) -> int:
    target = next(known[name] for name in sorted(known, key=len, reverse=True) if path.name.startswith(name))
    decoded, wrong = check(target, path.read_bytes())
    _say(wrong or ("decoded" if decoded else "refused"))
    return 1 if wrong else 0


def _guided(target: Target, executions: int, seed: int, finds: Path) -> int:
    """One decoder under atheris, in a process of its own: it ends the process that it runs in."""
    process = multiprocessing.get_context("spawn").Process(
        target=guided, args=(target.name, executions, seed, str(finds.absolute()))
    )
    process.start()
    process.join()
    _say(f"{'FAIL' if process.exitcode else 'ok  '}  {target.name:<12} {executions:>10,} inputs guided")
    return process.exitcode or 0


def guided(name: str, executions: int, seed: int, finds: str) -> None:
    """Run one decoder under atheris, and end the process."""
    try:
        import atheris
    except ModuleNotFoundError:
        sys.exit("--engine atheris needs: pip install atheris (CPython 3.11 to 3.13 on Linux)")
    with atheris.instrument_imports(include=["penstock.codec", "penstock.net", "penstock.model"]):
        target = next(one for one in targets() if one.name == name)
    corpus = Path(finds) / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(target.corpus):
        (corpus / f"seed-{index}").write_bytes(data)

    def one(data: bytes) -> None:
        _, wrong = check(target, data)
        if wrong is not None:
            raise RuntimeError(wrong)

    options = [f"-runs={executions}", f"-seed={seed + 1}", "-max_len=65536", "-timeout=5", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={finds}/{name}-", "-verbosity=0", *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
