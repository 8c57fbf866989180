"""Regenerate the gRPC code of this directory: ``python -m penstock.net.proto.generate`` (``make proto``).

Needs ``grpcio-tools`` (the ``dev`` extra). The output is deterministic for one version of the tools; a test compares
the descriptors in the generated code with the ``.proto`` files.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from penstock.model.errors import InternalError

DIRECTORY = Path(__file__).parent
SOURCE_ROOT = DIRECTORY.parents[2]
PROTOS = ("Controller.proto",)

# The compiler stamps its own version as the least that may run its output. What it writes for our files is the same from
# these versions on (the ones in pyproject.toml), so that is what we stamp.
OLDEST_PROTOBUF = (6, 31, 0)

_PROTOBUF_CHECK = re.compile(r"(Domain\.PUBLIC,\s+)\d+(,\s+)\d+(,\s+)\d+(,\s+'')")
_PROTOBUF_NOTE = re.compile(r"# Protobuf Python Version: .*")
_ABSOLUTE_IMPORT = re.compile(r"^from penstock\.net\.proto import ", re.MULTILINE)


def adapt(text: str) -> str:
    """The generated text with package-relative imports and our oldest supported runtime versions."""
    major, minor, patch = OLDEST_PROTOBUF
    text = _PROTOBUF_CHECK.sub(rf"\g<1>{major}\g<2>{minor}\g<3>{patch}\g<4>", text)
    text = _PROTOBUF_NOTE.sub(f"# Protobuf Python Version: {major}.{minor}.{patch}", text)
    return _ABSOLUTE_IMPORT.sub("from . import ", text)


def generate(target: Path = SOURCE_ROOT) -> list[Path]:
    """Write the generated files below ``target`` and return them. Raises ``InternalError`` where the compiler fails."""
    from grpc_tools import protoc  # only developers have it

    arguments = [
        "protoc",
        f"-I{SOURCE_ROOT}",
        f"-I{resources.files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        *(str(DIRECTORY / name) for name in PROTOS),
    ]
    status = protoc.main(arguments)
    if status != 0:
        raise InternalError("the protocol compiler failed", status=status)
    relative = DIRECTORY.relative_to(SOURCE_ROOT)
    written = sorted(path for path in (target / relative).iterdir() if "_pb2" in path.name and path.suffix != ".pyc")
    for path in written:
        path.write_text(adapt(path.read_text()))
    return written


if __name__ == "__main__":
    generate()
