"""Objects in S3, Google Cloud Storage or Azure, through obstore (extra ``s3``)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import from_url

from penstock.model.errors import AlreadyExistsError as NameTakenError
from penstock.model.errors import (
    ConditionFailedError,
    CorruptDataError,
    InvalidArgumentError,
    StorageFullError,
    UnavailableError,
    UnsupportedError,
)
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass

SCHEMES = ("s3", "gs", "az")

_ERRORS = (BaseError, OSError, ValueError)
"""What obstore raises: its own classes, FileNotFoundError, and ValueError for what it cannot parse."""

_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_MD5 = re.compile(r'"?([0-9a-f]{32})(?:-(\d+))?"?')
_RANGE = "416"
_NO_CONDITIONS = "501"
"""How a service refuses conditional writes that it does not know."""
_MISSING = frozenset((None, "404", "NoSuchKey", "BlobNotFound"))
"""How the absence of an object reads; other things that are not found (a bucket, a user) say nothing of the object."""

_FULL = frozenset(("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "507"))
_REASONS = {
    "NoSuchBucket": "the bucket does not exist",
    "AccessDenied": "the credentials do not allow this",
    "InvalidAccessKeyId": "the credentials are not known there",
    "XAdminUserNotFound": "the credentials are not known there",
    "SignatureDoesNotMatch": "the credentials are refused: wrong secret key, or wrong region",
    "ExpiredToken": "the credentials have expired",
    "RequestTimeTooSkewed": "the clock of this machine is off",
    "PermanentRedirect": "the bucket lies in another region: set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket lies in another region: set AWS_REGION",
    "SlowDown": "it asks to slow down",
    "503": "it asks to slow down",
    "401": "the credentials are refused",
    "403": "the credentials are refused",
}
_INSTANCE = "/latest/api/token"
"""What the library asks a machine in the cloud for credentials by, when it has found none elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Timeouts and retries for an object store. Times are in seconds.

    connect_s: 5, far above any normal round trip. idle_s: without a byte, 15. request_s: one attempt including the
        body, 60: a chunk of 16 MiB at 0.3 MB/s.
    retries, retry_max_s: attempts after the first within a call, with jittered pauses from 0.1 to ``retry_max_s``: 5
        and 5, about 8 s of throttling; then the caller tries again later. retry_total_s: no attempt after that, 120.
    delete_s: all attempts at a deletion, 10: a deletion can wait, but the checkpoints behind it cannot.
    multipart_bytes: larger objects are uploaded in parts of part_bytes, 32 and 8 MiB: only a failed part is sent again.
    """

    connect_s: float = 5.0
    idle_s: float = 15.0
    request_s: float = 60.0
    retries: int = 5
    retry_max_s: float = 5.0
    retry_total_s: float = 120.0
    delete_s: float = 10.0
    multipart_bytes: int = 32 << 20
    part_bytes: int = 8 << 20


class BucketObjects:
    """Implements ``ports.objects.Objects`` below ``url``: ``s3://bucket/prefix``, also ``gs://`` and ``az://``.

    ``endpoint`` is the address of an S3 service other than Amazon's. Credentials come from the environment or the
    machine's role, as obstore finds them; none are kept here. The library retries after 5xx, a lost connection, a
    truncated body or a timeout. Uploads are signed with the SHA-256 of their bytes: the service rejects damaged ones.
    Raises InvalidArgumentError for an invalid URL.
    """

    def __init__(self, url: str, *, endpoint: str | None = None, settings: ObjectSettings | None = None) -> None:
        self._url = checked_url(url)
        self._endpoint = endpoint
        self._settings = settings or ObjectSettings()
        self._store = _store_of(self._url, endpoint, self._settings)
        self._tags_are_md5 = True

    async def put(self, name: str, data: bytes) -> None:
        settings = self._settings
        try:
            result = await obstore.put_async(
                self._store,
                name,
                data,
                use_multipart=len(data) > settings.multipart_bytes,
                chunk_size=settings.part_bytes,
                max_concurrency=4,
            )
        except _ERRORS as error:
            # Perhaps only the answer was lost; retrying the end of a successful multipart upload even fails.
            if await self._arrived(name, data):
                return
            raise self._translated(error, name) from error
        await self._check(name, len(data), result["e_tag"])

    async def create(self, name: str, data: bytes) -> None:
        """As the port says, by ``If-None-Match``."""
        try:
            await obstore.put_async(self._store, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise NameTakenError("object exists", object=name) from error
        except _ERRORS as error:
            if _status(error) != _NO_CONDITIONS:
                raise self._translated(error, name) from error
            await self.put(name, data)

    async def create_new(self, name: str, data: bytes) -> None:
        """As ``ports.objects.ExclusiveObjects`` says."""
        await self._put_if(name, data, "create")

    async def replace(self, name: str, data: bytes, *, tag: str) -> str:
        """Write ``data`` if the object still has this tag, and return its new one. Raises ConditionFailedError, and as
        ``create_new``."""
        return await self._put_if(name, data, {"e_tag": tag})

    async def read_tagged(self, name: str) -> tuple[bytes, str]:
        """All bytes of the object, and the tag that changes with them. Raises FileNotFoundError, UnavailableError,
        UnsupportedError: the service has no tags."""
        try:
            found = await obstore.get_async(self._store, name)
            data, tag = bytes(await found.bytes_async()), found.meta["e_tag"]
        except _ERRORS as error:
            raise self._translated(error, name) from error
        if not tag:
            raise UnsupportedError("tier 2 has no tags of its objects", tier2=self._url, object=name)
        return data, tag

    async def read_whole(self, name: str) -> bytes:
        """As ``ports.objects.ExclusiveObjects`` says."""
        return (await self.read_tagged(name))[0]

    async def _put_if(self, name: str, data: bytes, mode: Any) -> str:
        try:
            result = await obstore.put_async(self._store, name, data, mode=mode, use_multipart=False)
        except AlreadyExistsError as error:
            if mode != "create":  # the service refuses to decide between requests at the same time
                raise UnavailableError("tier 2 refused one of several writes at once", object=name) from error
            raise NameTakenError("object exists", object=name) from error
        except PreconditionError as error:
            raise ConditionFailedError("object has another version", object=name) from error
        except NotSupportedError as error:
            raise UnsupportedError("tier 2 does not know conditional writes", tier2=self._url) from error
        except _ERRORS as error:
            if _status(error) == _NO_CONDITIONS:
                raise UnsupportedError("tier 2 does not know conditional writes", tier2=self._url) from error
            raise self._translated(error, name) from error
        tag = result["e_tag"] or ""
        if self._tags_are_md5 and (found := _MD5.fullmatch(tag)) and found[2] is None and found[1] != _md5(data).hex():
            await self._check_bytes(name, data, tag)
        return tag

    async def _check_bytes(self, name: str, data: bytes, tag: str) -> None:
        """Check an object whose tag looks like the MD5 of other bytes. So do all tags of a bucket that encrypts with its
        owner's keys. Raises CorruptDataError, UnavailableError."""
        try:
            found, found_tag = await self.read_tagged(name)
        except FileNotFoundError:
            return  # deleted meanwhile
        if found == data:
            self._tags_are_md5 = False
        elif found_tag == tag:
            raise CorruptDataError("tier 2 stored other bytes than were uploaded", object=name)

    async def overwrite(self, name: str, data: bytes) -> None:
        """As the port says. The service frees the earlier bytes, unless it keeps versions."""
        await self.size(name)
        await self.put(name, data)

    async def keeps_versions(self, name: str) -> bool:
        """As the port says. Objects of Google Cloud always have a version, and are kept after deletion by default."""
        try:
            found = await obstore.head_async(self._store, name)
        except _ERRORS as error:
            raise self._translated(error, name) from error
        # A bucket whose versioning was suspended gives new objects the version "null", and replaces only that one.
        return found["version"] not in (None, "null")

    async def read(self, name: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            data = bytes(await obstore.get_range_async(self._store, name, start=start, length=length))
        except _ERRORS as error:
            if _status(error) != _RANGE:
                raise self._translated(error, name) from error
            data = b""
        if len(data) < length and start + len(data) < await self.size(name):
            raise UnavailableError(
                "tier 2 returned fewer bytes than requested", object=name, start=start, length=length, got=len(data)
            )
        return data

    async def size(self, name: str) -> int:
        try:
            return (await obstore.head_async(self._store, name))["size"]
        except _ERRORS as error:
            raise self._translated(error, name) from error

    async def delete(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._settings.delete_s):
                await obstore.delete_async(self._store, name)
        except TimeoutError as error:
            raise UnavailableError("tier 2 does not answer", tier2=self._url, object=name) from error
        except _ERRORS as error:
            found = self._translated(error, name)
            if not isinstance(found, FileNotFoundError):
                raise found from error

    async def list(self, directory: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        try:
            async for page in obstore.list(self._store, prefix=directory, chunk_size=1000):
                found |= {item["path"]: item["size"] for item in page}
        except _ERRORS as error:
            raise self._translated(error, directory) from error
        return dict(sorted(found.items()))

    def location(self, name: str) -> str | None:
        query = f"?{urlencode({'endpoint': self._endpoint})}" if self._endpoint else ""
        return f"{self._url}/{name}{query}"

    async def _check(self, name: str, size_bytes: int, e_tag: str | None) -> None:
        """Check the stored object before the log forgets the bytes. Raises CorruptDataError."""
        try:
            kept = await obstore.head_async(self._store, name)
        except _ERRORS as error:
            found = self._translated(error, name)
            if isinstance(found, FileNotFoundError):
                raise UnavailableError("tier 2 does not show an object after its upload", object=name) from error
            raise found from error
        if kept["size"] != size_bytes or (e_tag and kept["e_tag"] and kept["e_tag"] != e_tag):
            raise CorruptDataError(
                "tier 2 stored other bytes than were uploaded", object=name, size=kept["size"], given=size_bytes
            )

    async def _arrived(self, name: str, data: bytes) -> bool:
        """Whether an upload without an answer is complete in the store. False if its tag is not an MD5, so that this is
        unknown."""
        try:
            kept = await obstore.head_async(self._store, name)
        except _ERRORS:
            return False
        found = _MD5.fullmatch(kept["e_tag"] or "")
        if found is None or kept["size"] != len(data):
            return False
        if found[2] is None:
            return found[1] == _md5(data).hex()
        step = self._settings.part_bytes
        parts = [_md5(data[at : at + step]) for at in range(0, len(data), step)]
        return found[1] == _md5(b"".join(parts)).hex() and found[2] == str(len(parts))

    def _translated(self, error: Exception, name: str) -> Exception:
        """The error for the caller. The library's own text is long; the status code is enough."""
        text = str(error).partition("\n\n")[0]
        status = _status(error)
        match = _CODE.search(str(error))
        code = match[1] if match else status
        if isinstance(error, FileNotFoundError) and code in _MISSING:
            return FileNotFoundError(f"no such object: {name}")
        if code in _FULL or status in _FULL:
            return StorageFullError("tier 2 is full", tier2=self._url, code=code)
        reason = _REASONS.get(code or "") or _REASONS.get(status or "")
        if _INSTANCE in text:
            reason = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        if reason is None:
            # Keep only the text up to the status: the body that follows may repeat what was signed.
            reason = text.partition("<?xml")[0][:300].strip()
        return UnavailableError("tier 2 refused the request", reason=reason, code=code, tier2=self._url, object=name)


def checked_url(url: str) -> str:
    """The URL without a slash at its end. Raises InvalidArgumentError."""
    parts = url_parts(url)
    if (
        parts.scheme not in SCHEMES
        or not parts.netloc
        or parts.query
        or parts.fragment
        or set("@:") & set(parts.netloc)
    ):
        raise InvalidArgumentError(
            "the URL of a tier 2 must be s3://bucket/prefix, or hdfs://namenode:port/path",
            url=url,
            schemes=", ".join((*SCHEMES, "hdfs")),
        )
    return url.rstrip("/")


def read_location(location: str, start: int, length: int) -> bytes:
    """Bytes of the object that ``BucketObjects.location`` named; blocks. For readers that bypass the store.

    Raises: FileNotFoundError, UnavailableError (also for fewer bytes than requested), InvalidArgumentError.
    """
    base, _, query = location.partition("?")
    directory, _, name = base.rpartition("/")
    bucket = _reader(directory, dict(parse_qsl(query)).get("endpoint"))
    try:
        data = bytes(obstore.get_range(bucket._store, name, start=start, length=length))
    except _ERRORS as error:
        raise bucket._translated(error, name) from error
    if len(data) != length:
        raise UnavailableError(
            "tier 2 returned fewer bytes than requested", object=location, start=start, length=length
        )
    return data


@lru_cache(maxsize=64)
def _reader(directory: str, endpoint: str | None) -> BucketObjects:
    # This reader can fall back to the store, so it does not retry for long.
    return BucketObjects(directory, endpoint=endpoint, settings=ObjectSettings(retries=2, retry_total_s=30))


def _store_of(url: str, endpoint: str | None, settings: ObjectSettings) -> Any:
    options: dict[str, Any] = {
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=settings.connect_s),
        "read_timeout": timedelta(seconds=settings.idle_s),
        "timeout": timedelta(seconds=settings.request_s),
        "user_agent": "penstock",
    }
    retry: dict[str, Any] = {
        "max_retries": settings.retries,
        "retry_timeout": timedelta(seconds=settings.retry_total_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=settings.retry_max_s),
            "base": 2,
        },
    }
    own: dict[str, Any] = {}
    build: Any = from_url  # typed by a Literal of every region and scheme
    if url.startswith("s3://"):
        # Not every S3 server supports bulk deletion.
        own["config"] = {"disable_bulk_delete": True, "virtual_hosted_style_request": False}
        if endpoint:
            own["config"] |= {"endpoint": endpoint}
    try:
        return build(url, client_options=options, retry_config=retry, **own)
    except _ERRORS as error:
        raise InvalidArgumentError("tier 2 cannot be used", url=url, reason=str(error).partition("\n\n")[0]) from error


def _status(error: Exception) -> str | None:
    match = _STATUS.search(str(error))
    return match[1] if match else None


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
