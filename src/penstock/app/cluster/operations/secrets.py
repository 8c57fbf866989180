"""``penstock cluster secret``: record which secret is valid, and change it while the cluster runs.

During a change, two secrets are valid. Each process then knows both: it uses the new one and accepts the earlier one.
Source: docs/design/0065-cluster.md, "The secret".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.app.cluster.access.keys import (
    AUDIT_KEYS,
    ERASURE_OBJECT,
    USERS,
    derived_keys,
    erasure_about,
    erasure_sealing_key,
    shared_erasure_key,
)
from penstock.app.cluster.access.sealed import seal
from penstock.app.cluster.access.secret import (
    ClusterSecret,
    draw_secret,
    read_cluster_secret,
    read_digests,
    replace_cluster_secret,
    secret_digest,
)
from penstock.app.cluster.access.shared_files import SharedFiles
from penstock.app.cluster.access.signing_keys import SharedSigningKeys
from penstock.app.cluster.init import read_config
from penstock.app.cluster.operations.reading import NodeReader
from penstock.app.tier2 import shared_objects
from penstock.codec.store.cluster_nodes import (
    CONTROLLERS,
    SECRET,
    STORES,
    ClusterConfig,
    ControllerEntry,
    SecretDigests,
    StoreEntry,
    encode_node,
)
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NodeChangedError,
    NotFoundError,
    WrongClusterError,
)
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.machine.signing_keys import FileSigningKeys

_NOT_OURS: Final = "the file does not have the secret of the cluster: copy it from a machine whose processes run"


async def record_secret(coordination: Coordination, path: Path, *, insecure: bool, offload: Offload, rng: Rng) -> bool:
    """Record the secrets of the file as the cluster's, if the cluster records none. Returns whether this changed anything. A
    file with two of them is that of a change, which then continues: the node may be lost with ZooKeeper's data.

    Raises WrongClusterError (the cluster records another secret, or tier 2 has keys that this one does not decrypt),
    NotFoundError, CorruptDataError, UnavailableError (tier 2 does not answer), OSError.
    """
    config, secret = await read_config(coordination), await offload.run(lambda: read_cluster_secret(path))
    digest = await _digest(secret.current, config, offload)
    found, _ = await read_digests(coordination)
    if found is None:
        objects = shared_objects(config.tier2, config.endpoint, insecure=insecure, offload=offload)
        if await _signing(objects, config, secret.all, rng).can_read() is False:
            raise WrongClusterError(_NOT_OURS, path=str(path))
        earlier = () if secret.earlier is None else (await _digest(secret.earlier, config, offload),)
        try:
            await coordination.create(SECRET, encode_node(SecretDigests(digests=(*earlier, digest))))
            return True
        except AlreadyExistsError:
            found, _ = await read_digests(coordination)
    if found is None or digest not in found.digests:
        raise WrongClusterError(_NOT_OURS, path=str(path))
    return False


async def begin_change(coordination: Coordination, path: Path, *, offload: Offload, rng: Rng) -> None:
    """Draw a new secret, write it to the file in front of the earlier one, and let the cluster accept both. After an
    interruption, call it again.

    Raises ConflictError (a change is not finished, or another one uses the file), NotFoundError (the cluster records no
    secret), WrongClusterError (the file has another secret), NodeChangedError (another operator was faster), OSError.
    """
    config, known = await read_config(coordination), await offload.run(lambda: read_cluster_secret(path))
    found, version = await read_digests(coordination)
    if found is None or version is None:
        raise NotFoundError("the cluster records no digest of its secret: run `penstock cluster secret record` first")
    if len(found.digests) > 1:
        raise ConflictError(
            "the secret is being changed: finish this change first, with `penstock cluster secret finish`"
        )
    digests = [await _digest(one, config, offload) for one in known.all]
    if found.digests[0] not in digests:
        raise WrongClusterError(_NOT_OURS, path=str(path))
    in_use = known.all[digests.index(found.digests[0])]
    # A file whose second secret is the valid one was written by a call that was interrupted here.
    new = known.current if known.current != in_use else draw_secret(rng)
    ours = ClusterSecret(current=new, earlier=in_use)
    if not await offload.run(lambda: replace_cluster_secret(path, ours, expected=known)):
        raise ConflictError("another command is changing the file with the secret; try again", path=str(path))
    both = SecretDigests(digests=(*found.digests, await _digest(new, config, offload)))
    try:
        await coordination.set(SECRET, encode_node(both), version)
    except NodeChangedError:
        now, _ = await read_digests(coordination)
        if now != both:  # otherwise a call that found our file was faster
            await offload.run(lambda: replace_cluster_secret(path, known, expected=ours))
            raise


async def finish_change(coordination: Coordination, path: Path, *, insecure: bool, offload: Offload, rng: Rng) -> bool:
    """Encrypt all keys in tier 2 with the new secret, and let the cluster accept only that. Then remove the earlier one from
    the file. Returns False if the change was finished before. After an interruption, call it again.

    Raises ConflictError (processes that have not been restarted with the new secret), WrongClusterError (the file has other
    secrets), NotFoundError, CorruptDataError (an object cannot be decrypted), UnavailableError, NodeChangedError, OSError.
    """
    config, known = await read_config(coordination), await offload.run(lambda: read_cluster_secret(path))
    found, version = await read_digests(coordination)
    if found is None or version is None:
        raise NotFoundError("the cluster records no digest of its secret: run `penstock cluster secret record` first")
    digests = [await _digest(one, config, offload) for one in known.all]
    if digests[0] != found.digests[-1] or not {*found.digests} <= {*digests}:
        raise WrongClusterError(
            "the file does not have the secrets of this change: use the one that `penstock cluster secret change` wrote",
            path=str(path),
        )
    if len(found.digests) > 1:
        behind = [
            name for name, digest in (await secrets_in_use(NodeReader(coordination))).items() if digest != digests[0]
        ]
        if behind:
            raise ConflictError(
                "these processes do not use the new secret yet: copy the file to their machines and restart them",
                processes=", ".join(behind),
            )
        objects = shared_objects(config.tier2, config.endpoint, insecure=insecure, offload=offload)
        await reseal(coordination, config, objects, known.all, offload=offload, rng=rng)
        await coordination.set(SECRET, encode_node(SecretDigests(digests=(digests[0],))), version)
    if known.earlier is not None:
        # A process that was down and has started meanwhile may have used the earlier secret until the node changed.
        objects = shared_objects(config.tier2, config.endpoint, insecure=insecure, offload=offload)
        await reseal(coordination, config, objects, known.all, offload=offload, rng=rng)
    # If it has changed, the next change has begun, and only this file has the secret of that one.
    await offload.run(lambda: replace_cluster_secret(path, ClusterSecret(current=known.current), expected=known))
    return len(found.digests) > 1


async def reseal(
    coordination: Coordination,
    config: ClusterConfig,
    objects: Objects,
    secrets: Sequence[bytes],
    *,
    offload: Offload,
    rng: Rng,
) -> None:
    """Encrypt all objects of tier 2 that need a secret with the first one. Repeat it if it fails."""
    cluster = config.cluster
    erasure = seal(
        erasure_sealing_key(secrets[0], cluster),
        await shared_erasure_key(objects, secrets, cluster),
        about=erasure_about(cluster),
        rng=rng,
    )
    try:
        await objects.overwrite(ERASURE_OBJECT, erasure)
    except FileNotFoundError:
        await objects.put(ERASURE_OBJECT, erasure)
    await _signing(objects, config, secrets, rng).reseal()
    users = SharedFiles(
        coordination=coordination,
        objects=objects,
        data=Path(),
        files=(),
        cluster=cluster,
        keys=derived_keys(secrets, cluster, USERS),
        rng=rng,
        offload=offload,
    )
    await users.reseal()


async def secrets_in_use(reader: NodeReader) -> Mapping[str, str]:
    """The digest of the secret of each registered process. Empty for one that does not report it."""
    found = {}
    for name in await reader.members(STORES):
        store = await reader.registration(f"{STORES}/{name}", StoreEntry)
        found[f"store {name}"] = "" if store is None else store.secret
    for name in await reader.members(CONTROLLERS):
        controller = await reader.registration(f"{CONTROLLERS}/{name}", ControllerEntry)
        found[f"controller {name}"] = "" if controller is None else controller.secret
    return found


def _signing(objects: Objects, config: ClusterConfig, secrets: Sequence[bytes], rng: Rng) -> SharedSigningKeys:
    """The keys of the audit log in tier 2; no file is touched."""
    keys = derived_keys(secrets, config.cluster, AUDIT_KEYS)
    return SharedSigningKeys(files=FileSigningKeys(Path()), objects=objects, cluster=config.cluster, keys=keys, rng=rng)


async def _digest(secret: bytes, config: ClusterConfig, offload: Offload) -> str:
    return await offload.run(lambda: secret_digest(secret, config.cluster))
