"""``penstock spark archive``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.app.cli.common.output import print_json
from penstock.app.cli.common.target import JsonOption
from penstock.core.units import counted, format_size


def archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write, a .tar.gz.", show_default=False)],
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--extra",
            metavar="NAME",
            help="Also the packages of an extra of Penstock, for example s3; may be given again.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Pack Penstock and the packages it needs, for Spark workers that lack them.

    Takes what is installed here, without Spark. Workers need the same version of Python on the same platform. Prints the
    options with which Spark unpacks the archive for its executors. Contacts no store and no cluster.

    \b
    penstock spark archive penstock.tar.gz
    penstock spark archive penstock.tar.gz --extra s3
    """
    from penstock.spark.worker.archive import write_archive

    made = write_archive(file, extras=("spark", *(extra or ())))
    if json:
        packages = [{"name": name, "version": version} for name, version in made.packages]
        print_json(
            {
                "path": str(made.path),
                "size_bytes": made.size_bytes,
                "python": made.python,
                "packages": packages,
                "conf": made.conf,
            }
        )
        return
    size, packed = format_size(made.size_bytes), counted(len(made.packages), "package")
    print(f"wrote {made.path}: {size}, {packed} for Python {made.python}")
    print("run Spark with:")
    for name, value in made.conf.items():
        print(f"  --conf {name}={value}")
