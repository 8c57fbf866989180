package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/** Times that writers note, and the windows that readers get. */
final class Watermarks {
    private static final int DISTINCT = 3;
    private static final int PATIENCE_S = 100;

    private Watermarks() {
    }

    /** Writes an event and notes a time, once a step. */
    private interface Noter {
        long note(int step) throws Exception;
    }

    static void one(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 1);
        EventStreamWriter<String> writer = session.writer(events, "st");
        // The reader falls behind: an upper bound is known of what it has not reached.
        follow(session, seen, events, stream, step -> {
            note(writer, "k" + step % 3, 1_000 + 2 * step);
            return note(writer, "k" + step % 5, 1_001 + 2 * step);
        });
    }

    static void two(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 2);
        EventStreamWriter<String> slow = session.writer(events, "st");
        EventStreamWriter<String> fast = session.writer(events, "st");
        follow(session, seen, events, stream, step -> {
            long time = note(slow, "k" + step % 3, 1_000 + step);
            note(fast, "k" + step % 5, 9_000 + 2 * step);
            return time;
        });
    }

    static void transactions(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 1);
        TransactionalEventStreamWriter<String> writer = session.open(events.createTransactionalEventWriter(
                "noter", "st", Session.TEXT, EventWriterConfig.builder().build()));
        follow(session, seen, events, stream, step -> {
            var transaction = writer.beginTxn();
            transaction.writeEvent("k", "k:" + step);
            transaction.commit(1_000L + step);
            return 1_000L + step;
        });
    }

    private static Stream stream(Session session, int segments) {
        session.streams.createStream(session.scope, "st", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(segments)).timestampAggregationTimeout(60_000).build());
        return Stream.of(session.scope, "st");
    }

    private static long note(EventStreamWriter<String> writer, String key, long time) throws Exception {
        writer.writeEvent(key, key + ":" + time).get(30, TimeUnit.SECONDS);
        writer.noteTime(time);
        return time;
    }

    /** Note and read until both bounds have advanced a few times, and report what was seen of them. */
    private static void follow(
            Session session, Map<String, Object> seen, EventStreamClientFactory events, Stream stream, Noter noter)
            throws Exception {
        session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        List<Long> lowers = new ArrayList<>();
        List<Long> uppers = new ArrayList<>();
        boolean ahead = false;
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        for (int step = 0; System.nanoTime() < giveUp; step++) {
            long slowest = noter.note(step);
            reader.readNextEvent(100);
            TimeWindow window = reader.getCurrentTimeWindow(stream);
            if (window.getLowerTimeBound() != null) {
                lowers.add(window.getLowerTimeBound());
                ahead |= window.getLowerTimeBound() > slowest;
            }
            if (window.getUpperTimeBound() != null) {
                uppers.add(window.getUpperTimeBound());
            }
            if (new HashSet<>(lowers).size() >= DISTINCT && new HashSet<>(uppers).size() >= DISTINCT) {
                break;
            }
        }
        seen.put("lower_advances", new HashSet<>(lowers).size() >= DISTINCT);
        seen.put("upper_advances", new HashSet<>(uppers).size() >= DISTINCT);
        seen.put("lower_ordered", new ArrayList<>(new TreeSet<>(lowers)).equals(
                new ArrayList<>(new java.util.LinkedHashSet<>(lowers))));
        seen.put("ahead_of_slowest", ahead);
    }
}
