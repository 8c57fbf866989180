package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupConfig.StreamDataRetention;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Policies and subscribers: when the head of a stream moves. The server looks every 200 ms here. */
final class Retention {
    private static final int EVENT_BYTES = 1000;

    private Retention() {
    }

    private static Stream stream(Session session, String name, RetentionPolicy policy) {
        session.streams.createStream(session.scope, name, StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(1)).retentionPolicy(policy).build());
        return Stream.of(session.scope, name);
    }

    private static long headOf(Session session, String name) throws Exception {
        return session.streams.fetchStreamInfo(session.scope, name).get(30, TimeUnit.SECONDS).getHeadStreamCut()
                .asImpl().getPositions().values().stream().mapToLong(Long::longValue).sum();
    }

    private static void write(EventStreamWriter<String> writer, int count) {
        String text = "x".repeat(EVENT_BYTES - 8);
        for (int number = 0; number < count; number++) {
            writer.writeEvent("k", text);
        }
        writer.flush();
    }

    private static ReaderGroupConfig config(StreamDataRetention retention, Stream... streams) {
        var settings = ReaderGroupConfig.builder().automaticCheckpointIntervalMillis(500).groupRefreshTimeMillis(200)
                .retentionType(retention);
        for (Stream stream : streams) {
            settings.stream(stream);
        }
        return settings.build();
    }

    /** Who is a subscriber, as groups are made, changed and deleted. */
    static void subscribers(Session session, Map<String, Object> seen) throws Exception {
        Stream first = stream(session, "first", RetentionPolicy.bySizeBytes(1));
        Stream second = stream(session, "second", RetentionPolicy.bySizeBytes(1));
        Controller controller = session.controller();
        ReaderGroupManager manager = session.groups();
        manager.createReaderGroup("automatic", config(StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT, first));
        manager.createReaderGroup("manual", config(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT, first));
        manager.createReaderGroup("none", config(StreamDataRetention.NONE, first));
        seen.put("first", listed(controller, first));
        ReaderGroup group = session.open(manager.getReaderGroup("manual"));
        group.resetReaderGroup(config(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT, second));
        seen.put("first_after_move", listed(controller, first));
        seen.put("second_after_move", listed(controller, second));
        group.resetReaderGroup(config(StreamDataRetention.NONE, second));
        seen.put("second_after_none", listed(controller, second));
        manager.deleteReaderGroup("automatic");
        seen.put("first_after_delete", listed(controller, first));
        seen.put("none_releases", Session.thrown(() -> {
            group.updateRetentionStreamCut(Map.of(second, session.streams.fetchStreamInfo(session.scope, "second")
                    .get(30, TimeUnit.SECONDS).getTailStreamCut()));
            return null;
        }));
    }

    private static TreeSet<String> listed(Controller controller, Stream stream) throws Exception {
        return new TreeSet<>(controller.listSubscribers(stream.getScope(), stream.getStreamName()).get(30, TimeUnit.SECONDS));
    }

    /** A group that releases at its checkpoints: the head follows its readers, and not before them. */
    static void automatic(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, "st", RetentionPolicy.bySizeBytes(0, Long.MAX_VALUE));
        ReaderGroupManager manager = session.groups();
        manager.createReaderGroup("rg", config(StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT, stream));
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        // A group that has published nothing holds nothing back. At the third checkpoint the first one is published.
        for (int checkpoints = 0; checkpoints < 3;) {
            checkpoints += reader.readNextEvent(Session.READ_MS).isCheckpoint() ? 1 : 0;
        }
        EventStreamWriter<String> writer = session.writer(events, "st");
        write(writer, 100);
        List<String> found = new ArrayList<>(Session.take(reader, 50));
        boolean held = true;
        for (int call = 0; call < 40; call++) {
            held &= headOf(session, "st") <= (long) found.size() * EVENT_BYTES;
            String event = reader.readNextEvent(50).getEvent();
            if (event != null) {
                found.add(event);
            }
        }
        seen.put("held", held);
        found.addAll(Session.take(reader, 100 - found.size()));
        seen.put("count", found.size());
        seen.put("all_released", Session.eventually(() -> {
            reader.readNextEvent(50);
            return headOf(session, "st") >= 99L * EVENT_BYTES;
        }));
    }

    /** A group that releases where its user says: the head goes there, and nowhere else. */
    static void manual(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, "st", RetentionPolicy.bySizeBytes(0, Long.MAX_VALUE));
        ReaderGroupManager manager = session.groups();
        manager.createReaderGroup("rg", config(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT, stream));
        ReaderGroup group = session.open(manager.getReaderGroup("rg"));
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        EventStreamWriter<String> writer = session.writer(events, "st");
        // Before anything is there: a group that has published nothing holds nothing back, and a look may come at any time.
        StreamCut start = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getHeadStreamCut();
        group.updateRetentionStreamCut(Map.of(stream, start));
        write(writer, 30);
        StreamCut middle = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getTailStreamCut();
        write(writer, 30);
        seen.put("read", Session.take(reader, 60).size());
        CompletableFuture<Map<Stream, StreamCut>> pending = group.generateStreamCuts(session.executor());
        Session.eventually(() -> {
            reader.readNextEvent(100);
            return pending.isDone();
        });
        Thread.sleep(1_000); // five looks, at none of which anything may go
        seen.put("kept", headOf(session, "st"));
        group.updateRetentionStreamCut(Map.of(stream, middle));
        seen.put("moved", Session.eventually(() -> headOf(session, "st") >= 29L * EVENT_BYTES));
        seen.put("not_beyond", headOf(session, "st") <= 30L * EVENT_BYTES);
        seen.put("backwards", Session.thrown(() -> {
            group.updateRetentionStreamCut(Map.of(stream, start));
            return null;
        }));
        group.updateRetentionStreamCut(pending.get(30, TimeUnit.SECONDS));
        seen.put("moved_again", Session.eventually(() -> headOf(session, "st") >= 59L * EVENT_BYTES));
    }

    /** Policies without subscribers. */
    static void policies(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        stream(session, "size", RetentionPolicy.bySizeBytes(20_000));
        stream(session, "time", RetentionPolicy.byTime(Duration.ofSeconds(1)));
        for (String name : List.of("size", "time")) {
            EventStreamWriter<String> writer = session.writer(events, name);
            seen.put(name, Session.eventually(() -> {
                write(writer, 10);
                return headOf(session, name) > 0;
            }));
        }
        StreamCut head = session.streams.fetchStreamInfo(session.scope, "size").get(30, TimeUnit.SECONDS).getHeadStreamCut();
        StreamCut tail = session.streams.fetchStreamInfo(session.scope, "size").get(30, TimeUnit.SECONDS).getTailStreamCut();
        seen.put("kept", sum(tail) - sum(head) >= 20_000);
    }

    private static long sum(StreamCut cut) {
        return cut.asImpl().getPositions().values().stream().mapToLong(Long::longValue).sum();
    }
}
