"""OpenStack Swift, whole, in one process on loopback: account, container and object server, and a proxy that speaks S3.

Run by Swift's own Python as ``swift_process.py DIRECTORY ACCOUNT:USER KEY``; prints ``{"port": N}`` when it takes requests. Ends with
its standard input, so that it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import eventlet

eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402
from swift.common.storage_policy import reload_storage_policies  # noqa: E402
from swift.common.wsgi import SwiftHttpProtocol, loadapp  # noqa: E402

_STORAGE = """
[DEFAULT]
swift_dir = {home}
devices = {home}/devices
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
log_level = ERROR
[pipeline:main]
pipeline = server
[app:server]
use = egg:swift#{kind}
"""

_PROXY = """
[DEFAULT]
swift_dir = {home}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
recheck_account_existence = 0
recheck_container_existence = 0
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
check_bucket_owner = false
allow_multipart_uploads = true
min_segment_size = 1048576
[filter:tempauth]
use = egg:swift#tempauth
user_{account}_{user} = {key} .admin
[filter:slo]
use = egg:swift#slo
"""


class _Quiet:
    """A log that keeps nothing but what went wrong."""

    def write(self, text: str) -> None:
        if "Traceback" in text:
            sys.stderr.write(text)

    def flush(self) -> None:
        pass


def main() -> None:
    home, (account, _, user), key = Path(sys.argv[1]), sys.argv[2].partition(":"), sys.argv[3]
    (home / "devices" / "d1").mkdir(parents=True)
    (home / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = penstock\n[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    os.environ["SWIFT_TEST_CONFIG_FILE"] = str(home / "none")
    from swift.common import utils

    utils.SWIFT_CONF_FILE = str(home / "swift.conf")
    utils.validate_hash_conf()
    from swift.common import storage_policy

    storage_policy.SWIFT_CONF_FILE = utils.SWIFT_CONF_FILE
    reload_storage_policies()
    for kind in ("account", "container", "object"):
        listener = _listen()
        port = listener.getsockname()[1]
        builder = RingBuilder(4, 1, 1)
        builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1.0})
        builder.rebalance()
        builder.get_ring().save(str(home / f"{kind}.ring.gz"))
        _serve(listener, home / f"{kind}.conf", _STORAGE.format(home=home, port=port, kind=kind))
    listener = _listen()
    _serve(listener, home / "proxy.conf", _PROXY.format(home=home, account=account, user=user, key=key))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    eventlet.tpool.execute(sys.stdin.read)


def _listen() -> socket.socket:
    found = eventlet.listen(("127.0.0.1", 0))
    # As Swift's own launcher does: head and body are two writes, and the second would wait 40 ms.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _serve(listener: socket.socket, path: Path, text: str) -> None:
    path.write_text(text)
    app = loadapp(str(path))
    eventlet.spawn(wsgi.server, listener, app, _Quiet(), protocol=SwiftHttpProtocol, capitalize_response_headers=False)


main()
