"""A real Keycloak in a process of its own, with a realm of two clients and a user. Set up by: make test-idp"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.testing.server import free_ports

HOME = Path(__file__).resolve().parents[2] / ".cache" / "idp" / "keycloak"
REALM = Path(__file__).with_name("keycloak_realm.json")
START_S = 600.0
"""A first start builds Keycloak, and each one creates its database: minutes on a busy machine."""
_ADMIN = "only in this test"


class Keycloak:
    """Serves on loopback, at the same port after each start. Its data is in memory: a restart generates new keys.

    Use it in a ``with`` block.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._added = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def issuer(self) -> str:
        return f"{self.url}/realms/shop"

    @property
    def jwks(self) -> str:
        return f"{self.issuer}/protocol/openid-connect/certs"

    def start(self) -> None:
        imported = HOME / "data" / "import"
        imported.mkdir(parents=True, exist_ok=True)
        (imported / "shop-realm.json").write_bytes(REALM.read_bytes())
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("bash", str(HOME / "bin" / "kc.sh"), "start-dev", "--db=dev-mem", "--import-realm"),
                    *("--http-host=127.0.0.1", f"--http-port={self._port}"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
                    "KC_BOOTSTRAP_ADMIN_USERNAME": "admin",
                    "KC_BOOTSTRAP_ADMIN_PASSWORD": _ADMIN,
                },
            )
        give_up = time.monotonic() + START_S
        while not self._answers():
            if time.monotonic() > give_up or self._process.poll() is not None:
                tail = self._log.read_text(errors="replace")[-3000:]
                self.stop()
                raise RuntimeError(f"Keycloak did not start:\n{tail}")
            time.sleep(0.5)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.jwks, timeout=30).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Kill it: the shell script, and the Java process that it may have started."""
        if self._process is not None:
            process, self._process = self._process, None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Keycloak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- tokens ---

    def token_of_job(self, client: str = "job") -> str:
        """A token by client credentials."""
        return self._token(grant_type="client_credentials", client_id=client, client_secret="of the job")

    def token_of_ann(self) -> str:
        """A token by a user's password."""
        return self._token(grant_type="password", client_id="cli", username="ann", password="correct horse")

    def _token(self, realm: str = "shop", **form: str) -> str:
        found = self._ask(f"/realms/{realm}/protocol/openid-connect/token", urllib.parse.urlencode(form).encode())
        return str(found["access_token"])

    # --- keys ---

    def add_key(self) -> None:
        """A new key, which signs from now on. The others stay valid."""
        self._added += 1
        provider = {
            "name": f"key-{self._added}",
            "providerId": "rsa-generated",
            "providerType": "org.keycloak.keys.KeyProvider",
            "config": {"priority": [str(1000 + self._added)], "keySize": ["2048"], "algorithm": ["RS256"]},
        }
        self._admin("POST", "/components", provider)

    def remove_keys_but(self, keep: str) -> None:
        """Withdraw the keys that sign tokens, except the one with this name."""
        for one in self._keys():
            if one["name"] != keep:
                self._admin("DELETE", f"/components/{one['id']}")

    def newest_key(self) -> str:
        return str(max(self._keys(), key=lambda one: int(one["config"]["priority"][0]))["name"])

    def _keys(self) -> list[Mapping[str, Any]]:
        found = self._admin("GET", "/components?type=org.keycloak.keys.KeyProvider")
        return [one for one in found if one["providerId"] == "rsa-generated"]

    def _admin(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        token = self._token("master", grant_type="password", client_id="admin-cli", username="admin", password=_ADMIN)
        data = None if document is None else json.dumps(document).encode()
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        return self._ask(f"/admin/realms/shop{path}", data, headers, method)

    def _ask(
        self, path: str, data: bytes | None, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> Any:
        request = urllib.request.Request(self.url + path, data=data, headers=dict(headers or {}), method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None
