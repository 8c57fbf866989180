"""A store that is rebuilt from tier 2 alone."""

from penstock.codec.store import rows as records
from penstock.segmentstore.repair.rebuild import list_catalogue, load_container, settle_container
from penstock.segmentstore.repair.rebuild_aside import restore_aside
from penstock.segmentstore.store import SegmentStore
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.testing.world import World


async def reborn(world, *, reported=None, aside=None) -> SegmentStore:
    """A store of what tier 2 alone holds: the catalogue and the chunks."""
    keyvalue = MemoryKeyValue()
    catalogue = await list_catalogue(world.objects)
    assert sorted(catalogue) == list(range(world.settings.containers))
    segments = []
    for index, names in sorted(catalogue.items()):
        state = await load_container(world.objects, index, names, keyvalue)
        assert state.damage == []
        restored = await restore_aside(keyvalue, index, epoch=state.epoch, chunks=world.chunks)
        if aside is not None:
            aside.append(restored)
        segments += [item async for item in settle_container(keyvalue, index, epoch=0)]
    if reported is not None:
        reported += segments
    await keyvalue.commit([(records.STORE_KEY, records.encode_store(world.settings.containers))])
    rebuilt = World(rng=world.rng)
    rebuilt.settings, rebuilt.keyvalue, rebuilt.chunks = world.settings, keyvalue, world.chunks
    return await rebuilt.open()
