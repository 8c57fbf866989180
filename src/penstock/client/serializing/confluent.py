"""The REST interface of Confluent's Schema Registry, which Apicurio Registry and Karapace serve too.

Needs the extra ``registry``. Source: docs.confluent.io, "Schema Registry API Reference".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from penstock.client.options import number
from penstock.model.errors import (
    IncompatibleSchemaError,
    InvalidArgumentError,
    PenstockError,
    SchemaNotFoundError,
    SchemaRegistryRefusedError,
    SchemaRegistryUnavailableError,
    missing_extra,
)
from penstock.ports import forks
from penstock.ports.schemas import RegisteredSchema, Schema, SchemaKind, SchemaReference

if TYPE_CHECKING:
    import urllib3

T = TypeVar("T")

ANSWER_MAX_BYTES = 16 << 20
_KEPT_MAX = 4096  # schemas that are kept by number
_MEDIA = "application/vnd.schemaregistry.v1+json"
_PASSING = (408, 429, 500, 502, 503, 504)
"""Status of answers that another try may change."""


class _Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class _Text(msgspec.Struct, frozen=True):
    """What ``/schemas/ids`` returns; a registry leaves the type of Avro out."""

    schema: str
    schemaType: SchemaKind | None = None  # noqa: N815 - the name in the interface
    references: tuple[_Reference, ...] | None = None

    def plain(self) -> Schema:
        found = tuple(
            SchemaReference(name=item.name, subject=item.subject, version=item.version)
            for item in self.references or ()
        )
        return Schema(kind=self.schemaType or SchemaKind.AVRO, text=self.schema, references=found)


class _Id(msgspec.Struct, frozen=True):
    id: int


class _Version(_Text, frozen=True, kw_only=True):
    id: int
    subject: str
    version: int


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""


class ConfluentSchemaRegistry:
    """A ``SchemaRegistry`` behind Confluent's REST interface.

    Answers by number are kept, so known schemas need no registry. A call is repeated with growing pauses if the registry
    gives no answer or one that may pass; it raises SchemaRegistryUnavailableError after ``retries`` repeats. All calls
    may be repeated: registering twice changes nothing. Safe for several threads.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
        ca_file: str | None = None,
    ) -> None:
        """``user`` and ``password`` (basic) or ``token`` (bearer) identify the caller; they may also be in the URL.
        ``timeout_s``: for each try, to connect and to wait for bytes. ``ca_file``: certificates to trust, in PEM.

        Raises MissingExtraError (no urllib3), InvalidArgumentError. It makes no call yet.
        """
        try:
            import urllib3
        except ImportError as error:
            raise missing_extra("urllib3", "registry") from error
        self._library = urllib3
        number("timeout_s", timeout_s, above=0)
        number("retries", retries, least=0)
        self._url, user, password = _place(url, user, password)
        self._headers = {"Accept": f"{_MEDIA}, application/json", "Content-Type": _MEDIA}
        if user is not None and token is not None:
            raise InvalidArgumentError("give a registry a user and a password, or a token", url=self._url)
        if user is not None:
            self._headers |= urllib3.make_headers(basic_auth=f"{user}:{password or ''}")
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._retries = retries
        self._ca_file = ca_file
        self._pool: urllib3.PoolManager | None = None
        self._owner = forks.current()
        self._known: dict[int, Schema] = {}

    def __repr__(self) -> str:
        return f"<ConfluentSchemaRegistry {self._url}>"

    def __getstate__(self) -> dict[str, Any]:
        """Connections stay in their process."""
        return {**self.__dict__, "_pool": None, "_owner": None, "_library": None, "_known": dict(self._known)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import urllib3

        self.__dict__.update(state, _library=urllib3, _owner=forks.current())

    def schema(self, schema_id: int) -> Schema:
        """See ``SchemaRegistry.schema``. Asks once for each number."""
        found = self._known.get(schema_id)
        if found is None:
            found = self._ask("GET", f"/schemas/ids/{schema_id}", _Text, id=schema_id).plain()
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            self._known[schema_id] = found
        return found

    def register(self, subject: str, schema: Schema) -> int:
        """See ``SchemaRegistry.register``."""
        return self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", _Id, body=schema, subject=subject).id

    def find(self, subject: str, schema: Schema) -> RegisteredSchema:
        """See ``SchemaRegistry.find``."""
        found = self._ask("POST", f"/subjects/{quote(subject, safe='')}", _Version, body=schema, subject=subject)
        return RegisteredSchema(id=found.id, subject=found.subject, version=found.version, schema=schema)

    def latest(self, subject: str) -> RegisteredSchema:
        """See ``SchemaRegistry.latest``."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        found = self._ask("GET", path, _Version, subject=subject)
        return RegisteredSchema(id=found.id, subject=found.subject, version=found.version, schema=found.plain())

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._owner is forks.current():
            pool.clear()

    def _connections(self) -> urllib3.PoolManager:
        if self._pool is None or self._owner is not forks.current():
            if self._pool is not None:
                forks.keep(self._pool)
            library = self._library
            self._pool = library.PoolManager(
                timeout=library.Timeout(connect=self._timeout_s, read=self._timeout_s),
                ca_certs=self._ca_file,
                retries=library.Retry(
                    total=self._retries,
                    redirect=0,
                    allowed_methods=None,
                    status_forcelist=_PASSING,
                    backoff_factor=0.1,
                    backoff_max=self._timeout_s,
                    raise_on_status=False,
                    raise_on_redirect=False,
                ),
            )
            self._owner = forks.current()
        return self._pool

    def _ask(self, method: str, path: str, kind: type[T], *, body: Schema | None = None, **fields: Any) -> T:
        data = None if body is None else msgspec.json.encode(_body_of(body))
        try:
            answer = self._connections().request(
                method, self._url + path, body=data, headers=self._headers, redirect=False, preload_content=False
            )
            try:
                content = answer.read(ANSWER_MAX_BYTES + 1)
            finally:
                answer.release_conn()
        except (self._library.exceptions.HTTPError, OSError) as error:
            raise SchemaRegistryUnavailableError(
                "schema registry does not answer", url=self._url, cause=type(error).__name__, **fields
            ) from error
        if answer.status != 200 or len(content) > ANSWER_MAX_BYTES:
            raise self._failure(answer.status, content, fields)
        try:
            return msgspec.json.decode(content, type=kind)
        except (ValueError, RecursionError) as error:
            raise SchemaRegistryUnavailableError(
                "answer does not come from a schema registry; check its URL",
                url=self._url,
                cause=str(error)[:200],
                **fields,
            ) from error

    def _failure(self, status: int, content: bytes, fields: dict[str, Any]) -> PenstockError:
        try:
            reason = msgspec.json.decode(content, type=_Failure).message
        except (ValueError, RecursionError):
            reason = ""
        fields = {"url": self._url, "status": status, **fields, "reason": reason[:500]}
        match status:
            case 401 | 403:
                return SchemaRegistryRefusedError("schema registry refuses the caller; check its credentials", **fields)
            case 404:
                return SchemaNotFoundError("registry has no such schema or subject", **fields)
            case 409:
                return IncompatibleSchemaError("schema does not fit the earlier ones of its subject", **fields)
            case 400 | 422:
                return InvalidArgumentError("schema registry does not take this schema", **fields)
        return SchemaRegistryUnavailableError("schema registry cannot answer now", **fields)


def _place(url: str, user: str | None, password: str | None) -> tuple[str, str | None, str | None]:
    """The URL without credentials and trailing slash, and the credentials. Raises InvalidArgumentError."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgumentError("not a valid URL of a schema registry", url=str(url)) from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InvalidArgumentError("the URL of a schema registry must look like http://host:8081", url=url)
    if parts.username is not None:
        if user is not None:
            raise InvalidArgumentError("the user is given twice: in the URL and as an argument", url=url)
        user, password = unquote(parts.username), unquote(parts.password or "")
    host = f"[{host}]" if ":" in host else host
    place = host if port is None else f"{host}:{port}"
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")), user, password


def _body_of(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.kind is not SchemaKind.AVRO:
        body["schemaType"] = schema.kind.value
    if schema.references:
        body["references"] = [
            {"name": item.name, "subject": item.subject, "version": item.version} for item in schema.references
        ]
    return body
