package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** Reader groups. */
final class Groups {
    private Groups() {
    }

    private static ReaderGroupConfig.ReaderGroupConfigBuilder manual() {
        return ReaderGroupConfig.builder().disableAutomaticCheckpoints().groupRefreshTimeMillis(500);
    }

    static void groups(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream first = session.filled(events, "first", 2, 100);
        Stream second = session.stream("second", 1);
        Session.write(session.writer(events, "second"), 100, 150, 7);
        ReaderGroupManager manager = session.groups();
        ReaderGroupConfig config = manual().stream(first).stream(second).build();
        seen.put("created", manager.createReaderGroup("rg", config));
        seen.put("again", manager.createReaderGroup("rg", config));
        seen.put("other_config", Session.thrown(
                () -> manager.createReaderGroup("rg", manual().stream(first).build())));
        seen.put("missing", Session.thrown(() -> manager.getReaderGroup("nothing")));
        seen.put("stream_missing", Session.thrown(
                () -> manager.createReaderGroup("no-stream", manual().stream(session.scope + "/nothing").build())));
        ReaderGroup group = session.open(manager.getReaderGroup("rg"));
        seen.put("streams", new TreeSet<>(group.getStreamNames()));
        seen.put("unread_all", group.getMetrics().unreadBytes() > 0);
        EventStreamReader<String> one = session.reader(events, "r1", "rg");
        EventStreamReader<String> two = session.reader(events, "r2", "rg");
        seen.put("taken_name", Session.thrown(() -> session.reader(events, "r1", "rg")));
        List<String> found = new ArrayList<>();
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(Session.PATIENCE_S);
        while (found.size() < 150 && System.nanoTime() < giveUp) {
            for (EventStreamReader<String> reader : List.of(one, two)) {
                String event = reader.readNextEvent(200).getEvent();
                if (event != null) {
                    found.add(event);
                }
            }
        }
        Session.count(seen, found);
        seen.put("online", new TreeSet<>(group.getOnlineReaders()));
        seen.put("distribution", group.getReaderSegmentDistribution().getReaderSegmentDistribution().values()
                .stream().mapToInt(Integer::intValue).sum() + group.getReaderSegmentDistribution().getUnassignedSegments());
        one.close();
        two.close();
        seen.put("online_after", group.getOnlineReaders().size());
        // The same group on another stream: those who read it must start again.
        group.resetReaderGroup(manual().stream(second).build());
        seen.put("streams_after", new TreeSet<>(group.getStreamNames()));
        try (EventStreamReader<String> reader = session.reader(events, "r3", "rg")) {
            seen.put("after_reset", Session.take(reader, 50).size());
            seen.put("dry", Session.isDry(reader));
        }
        manager.deleteReaderGroup("rg");
        seen.put("deleted", Session.thrown(() -> manager.getReaderGroup("rg")));
        seen.put("created_anew", manager.createReaderGroup("rg", config));
        try (EventStreamReader<String> reader = session.reader(events, "r1", "rg")) {
            seen.put("read_anew", Session.take(reader, 150).size());
        }
    }

    static void checkpoints(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        ScheduledExecutorService executor = session.executor();
        Stream stream = session.filled(events, "st", 2, 100);
        ReaderGroupManager manager = session.groups();
        manager.createReaderGroup("rg", manual().stream(stream).build());
        ReaderGroup group = session.open(manager.getReaderGroup("rg"));
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        List<String> before = Session.take(reader, 40);
        CompletableFuture<Checkpoint> pending = group.initiateCheckpoint("cp", executor);
        List<String> names = new ArrayList<>();
        List<String> after = new ArrayList<>();
        Session.eventually(() -> {
            EventRead<String> event = reader.readNextEvent(Session.READ_MS);
            if (event.isCheckpoint()) {
                names.add(event.getCheckpointName());
            } else if (event.getEvent() != null) {
                (names.isEmpty() ? before : after).add(event.getEvent());
            }
            return pending.isDone();
        });
        Checkpoint checkpoint = Checkpoint.fromBytes(pending.get(30, TimeUnit.SECONDS).toBytes());
        seen.put("names", names);
        after.addAll(Session.take(reader, 100 - before.size() - after.size()));
        seen.put("count", before.size() + after.size());
        reader.close();
        group.resetReaderGroup(manual().startFromCheckpoint(checkpoint).build());
        try (EventStreamReader<String> again = session.reader(events, "r", "rg")) {
            List<String> repeated = Session.take(again, after.size());
            seen.put("same_again", new HashSet<>(repeated).equals(new HashSet<>(after)));
            seen.put("dry", Session.isDry(again));
            CompletableFuture<Checkpoint> cancelled = group.initiateCheckpoint("never", executor);
            group.cancelOutstandingCheckpoints();
            Session.isDry(again);
            seen.put("cancelled", Session.eventually(cancelled::isDone));
        }
        group.resetReaderGroup();
        try (EventStreamReader<String> again = session.reader(events, "r", "rg")) {
            seen.put("last_checkpoint", new HashSet<>(Session.take(again, after.size())).equals(new HashSet<>(after)));
        }
    }

    static void cuts(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        ScheduledExecutorService executor = session.executor();
        Stream stream = session.filled(events, "st", 3, 90);
        ReaderGroupManager manager = session.groups();
        ReaderGroup group = session.group(manager, "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        seen.put("first", Session.take(reader, 90).size());
        CompletableFuture<Map<Stream, StreamCut>> pending = group.generateStreamCuts(executor);
        Session.eventually(() -> {
            reader.readNextEvent(100);
            return pending.isDone();
        });
        StreamCut middle = StreamCut.from(pending.get(30, TimeUnit.SECONDS).get(stream).asText());
        seen.put("at_tail", middle.equals(session.streams.fetchStreamInfo(session.scope, "st")
                .get(30, TimeUnit.SECONDS).getTailStreamCut()));
        EventStreamWriter<String> writer = session.writer(events, "st");
        Session.write(writer, 90, 120, 7);
        StreamCut end = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getTailStreamCut();
        Session.write(writer, 120, 150, 7);
        ReaderGroupConfig bounded = ReaderGroupConfig.builder().groupRefreshTimeMillis(500)
                .automaticCheckpointIntervalMillis(1000).stream(stream, middle, end).build();
        manager.createReaderGroup("bounded", bounded);
        EventStreamReader<String> between = session.reader(events, "r", "bounded");
        List<String> found = Session.take(between, 30);
        boolean inside = found.stream().mapToInt(text -> Integer.parseInt(text.split(":")[1]))
                .allMatch(number -> number >= 90 && number < 120);
        Session.count(seen, found);
        seen.put("inside", inside);
        seen.put("dry", Session.isDry(between));
        between.close();
        // The client does not look at the end again once it is there; who takes over does.
        EventStreamReader<String> heir = session.reader(events, "heir", "bounded");
        seen.put("completed", Session.eventually(() -> heir.readNextEvent(200).isReadCompleted()));
        seen.put("positions", group.getStreamCuts().containsKey(stream));
        seen.put("turned", Session.thrown(() -> manual().stream(stream, end, middle).build()));
    }

    /** A reader that dies is taken offline by another process: what it had, or had since a position, is read by others. */
    static void readersLeave(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 100);
        ReaderGroup group = session.group(session.groups(), "rg", stream);
        EventStreamReader<String> gone = session.reader(events, "gone", "rg");
        List<Position> positions = new ArrayList<>();
        List<String> first = Session.take(gone, 60, event -> {
            if (event.getEvent() != null) {
                positions.add(Position.fromBytes(event.getPosition().toBytes()));
            }
        });
        group.readerOffline("gone", positions.get(49));
        EventStreamReader<String> next = session.reader(events, "next", "rg");
        List<String> rest = Session.take(next, 50);
        List<String> all = new ArrayList<>(first.subList(0, 50));
        all.addAll(rest);
        Session.count(seen, all);
        seen.put("dry", Session.isDry(next));
        seen.put("online", group.getOnlineReaders());
        seen.put("gone", Session.thrown(() -> {
            for (int calls = 0; calls < 50; calls++) {
                gone.readNextEvent(200);
            }
            return null;
        }));
        next.closeAt(positions.get(49));
        seen.put("online_after", group.getOnlineReaders());
    }
}
