"""Packs a compiled library and the files beside it as a wheel, which pip installs; scripts/wheel calls it.

    wheel.py LIBRARY VERSION DIRECTORY [FILE...]     FILE is a licence

The wheel serves each CPython from 3.11 on, as the library uses Python's stable interface, and each Linux with the
versions of glibc's symbols that the library needs.
"""

import base64
import hashlib
import os
import platform
import re
import sys
import time
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
PACKAGE = SOURCE / "crates/strait-python/python/strait"

METADATA = """\
Metadata-Version: 2.4
Name: strait
Version: {version}
Summary: Packets of Linux interfaces and capture files as Arrow record batches and frames
License-Expression: MIT OR Apache-2.0
{licences}\
Requires-Python: >=3.11
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Rust
Classifier: Topic :: System :: Networking :: Monitoring
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: strait
Root-Is-Purelib: false
Tag: {tag}
"""


def glibc(library: bytes) -> int:
    """Returns N of the newest version 2.N of glibc with a symbol that the library needs."""
    return max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library))


def contents(library: bytes, version: str, tag: str, licences: list[Path]) -> dict[str, bytes]:
    """Returns the files of the wheel but for the list of them."""
    names = "".join(f"License-File: {path.name}\n" for path in licences)
    description = (SOURCE / "docs/guide/python.md").read_text()
    metadata = METADATA.format(version=version, licences=names, description=description)
    files = {f"strait/{path.name}": path.read_bytes() for path in sorted(PACKAGE.iterdir()) if path.is_file()}
    files["strait/_strait.abi3.so"] = library
    info = f"strait-{version}.dist-info"
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    files.update({f"{info}/licenses/{path.name}": path.read_bytes() for path in licences})
    return files


def record(files: dict[str, bytes], name: str) -> bytes:
    """Returns the list of the files with their digests."""
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{name},,\n"]).encode()


def main() -> None:
    library, version, directory = Path(sys.argv[1]).read_bytes(), sys.argv[2], Path(sys.argv[3])
    licences = [SOURCE / "LICENSE-MIT", SOURCE / "LICENSE-APACHE", *map(Path, sys.argv[4:])]
    tag = f"cp311-abi3-manylinux_2_{glibc(library)}_{platform.machine()}"
    files = contents(library, version, tag, licences)
    list_name = f"strait-{version}.dist-info/RECORD"
    files[list_name] = record(files, list_name)
    # The same input gives the same wheel.
    date = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", 315532800)))[:6]
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"strait-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)
    print(wheel)


main()
