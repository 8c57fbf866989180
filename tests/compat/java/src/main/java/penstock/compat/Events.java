package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** Writers and readers of events. */
final class Events {
    private static final int MIB = 1 << 20;
    private static final int IDLE_S = 25;

    private Events() {
    }

    static void events(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 3);
        EventStreamWriter<String> writer = session.writer(events, "st");
        Session.write(writer, 0, 1000, 7);
        // Several at once, whole or not at all; one that waits for its acknowledgement; one without a key; non-ASCII keys.
        writer.writeEvents("batch", List.of("b:0", "b:1", "b:2")).get(30, TimeUnit.SECONDS);
        writer.writeEvent("k0", "k0:1001").get(30, TimeUnit.SECONDS);
        writer.writeEvent("none:0").get(30, TimeUnit.SECONDS);
        writer.writeEvent("schlüssel-日本", "u:0").get(30, TimeUnit.SECONDS);
        writer.writeEvent("empty", "").get(30, TimeUnit.SECONDS);
        try (EventStreamClientFactory alone = EventStreamClientFactory.withScope(session.scope, session.config);
                EventStreamWriter<String> unpooled = alone.createEventWriter(
                        "own-id", "st", Session.TEXT, EventWriterConfig.builder().enableConnectionPooling(false).build())) {
            Session.write(unpooled, 2000, 2100, 3);
        }
        List<String> found = new ArrayList<>();
        session.group(session.groups(), "rg", stream);
        List<EventPointer> pointers = new ArrayList<>();
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        found.addAll(Session.take(reader, 1107, event -> {
            if (event.getEvent() != null) {
                pointers.add(event.getEventPointer());
            }
        }));
        seen.put("empty", found.remove(""));
        Session.count(seen, found);
        seen.put("ordered", Session.isOrdered(found));
        Set<String> fetched = new HashSet<>();
        for (EventPointer pointer : pointers.subList(0, 20)) {
            fetched.add(reader.fetchEvent(EventPointer.fromBytes(pointer.toBytes())));
            fetched.add(session.streams.fetchEvent(pointer, Session.TEXT).get(30, TimeUnit.SECONDS));
        }
        seen.put("fetched", fetched.size());
        seen.put("dry", Session.isDry(reader));
    }

    static void largeEvents(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 2);
        var bytes = new ByteArraySerializer();
        EventWriterConfig large = EventWriterConfig.builder().enableLargeEvents(true).build();
        byte[] nine = filled(9 * MIB, 9);
        byte[] forty = filled(40 * MIB, 40);
        try (EventStreamWriter<byte[]> writer = events.createEventWriter("st", bytes, large)) {
            writer.writeEvent("k", filled(10, 1));
            writer.writeEvent("k", nine);
            writer.writeEvent("k", filled(10, 2));
            writer.writeEvent("k", forty);
            writer.writeEvent("k", filled(8 * MIB, 8));
            writer.flush();
        }
        try (EventStreamWriter<byte[]> writer = events.createEventWriter("st", bytes, EventWriterConfig.builder().build())) {
            seen.put("not_enabled", Session.thrown(() -> writer.writeEvent("k", nine).get(30, TimeUnit.SECONDS)));
        }
        session.group(session.groups(), "rg", stream);
        List<Integer> sizes = new ArrayList<>();
        boolean whole = true;
        try (EventStreamReader<byte[]> reader = events.createReader("r", "rg", bytes, ReaderConfig.builder().build())) {
            long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(Session.PATIENCE_S);
            while (sizes.size() < 5 && System.nanoTime() < giveUp) {
                byte[] event = reader.readNextEvent(Session.READ_MS).getEvent();
                if (event != null) {
                    sizes.add(event.length);
                    whole &= event.length < MIB || Arrays.equals(event, filled(event.length, event.length / MIB));
                }
            }
        }
        seen.put("sizes", sizes);
        seen.put("whole", whole);
    }

    private static byte[] filled(int size, int seed) {
        byte[] data = new byte[size];
        new java.util.Random(seed).nextBytes(data);
        return data;
    }

    /** Small events as fast as they go: most blocks end within an event. */
    static void throughput(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 2);
        EventStreamWriter<String> writer = session.writer(events, "st");
        long began = System.nanoTime();
        Session.write(writer, 0, 50_000, 10);
        long written = System.nanoTime();
        List<String> found = session.readAll(events, "rg", 50_000, stream);
        Session.count(seen, found);
        seen.put("ordered", Session.isOrdered(found));
        seen.put("write_ms", TimeUnit.NANOSECONDS.toMillis(written - began));
        seen.put("read_ms", TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - written));
    }

    /** Reads what other clients wrote, and writes what they read, on streams that the test made. */
    static void foreign(Session session, Map<String, Object> seen) throws Exception {
        String[] words = session.step("ready").split(" ");
        Stream stream = Stream.of(words[0]);
        int expected = Integer.parseInt(words[1]);
        EventStreamClientFactory events = session.open(EventStreamClientFactory.withScope(stream.getScope(), session.config));
        var manager = session.open(io.pravega.client.admin.ReaderGroupManager.withScope(stream.getScope(), session.config));
        session.group(manager, "java", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "java");
        List<String> found = Session.take(reader, expected);
        Session.count(seen, found);
        seen.put("longest", found.stream().mapToInt(String::length).max().orElse(0));
        List<String> numbered = new ArrayList<>(found);
        numbered.removeIf(text -> text.length() > 100);
        seen.put("ordered", Session.isOrdered(numbered));
        Session.write(session.writer(events, stream.getStreamName()), 10_000, 10_100, 5);
    }

    /** A reader that waits for long at a tail, with nothing going on but the client's keep-alives, then gets an event. */
    static void idle(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 1);
        EventStreamWriter<String> writer = session.writer(events, "st");
        Session.write(writer, 0, 1, 1);
        session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        List<String> found = Session.take(reader, 1);
        int unexpected = 0;
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(IDLE_S);
        while (System.nanoTime() < until) {
            unexpected += reader.readNextEvent(5000).getEvent() == null ? 0 : 1;
        }
        seen.put("while_idle", unexpected);
        Session.write(writer, 1, 2, 1);
        found.addAll(Session.take(reader, 1));
        Session.count(seen, found);
    }
}
