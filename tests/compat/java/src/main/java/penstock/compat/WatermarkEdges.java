package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.WriterPosition;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** Time windows while writers leave, a stream scales or is truncated, and the server is killed. */
final class WatermarkEdges {
    private static final int DISTINCT = 3;
    private static final long FAST = 1_000_000;

    private WatermarkEdges() {
    }

    /** A writer with a name, which writes an event of each time that it notes. */
    private static final class Noter {
        final String id;
        final EventStreamWriter<String> writer;
        long time;

        Noter(Session session, EventStreamClientFactory events, String id, long time) {
            this.id = id;
            this.writer = session.open(
                    events.createEventWriter(id, "st", Session.TEXT, EventWriterConfig.builder().build()));
            this.time = time;
        }

        void note() throws Exception {
            time++;
            for (int key = 0; key < 4; key++) {
                writer.writeEvent(id + key, id + key + ":" + time).get(60, TimeUnit.SECONDS);
            }
            writer.noteTime(time);
        }
    }

    /** A reader and the bounds that it is given. They must not go back, and no event that they cover may come late. */
    static final class Follower {
        final EventStreamReader<String> reader;
        final Stream stream;
        final TreeSet<Long> lowers = new TreeSet<>();
        Long lower;
        Long upper;
        int back;
        int late;
        int count;
        boolean overtaken;
        /** The time of an event with number 0. */
        long origin;
        /** Takes all events, if it is set. */
        List<String> events;
        /** Times up to it are not looked at: of events from before a writer was forgotten or a bound was known. */
        long exempt = Long.MIN_VALUE;

        Follower(EventStreamReader<String> reader, Stream stream) {
            this.reader = reader;
            this.stream = stream;
        }

        void look() {
            String event = next();
            if (event != null) {
                count++;
                long time = origin + Long.parseLong(event.split(":")[1]);
                // Writers of other clients note nothing.
                boolean noted = !event.startsWith("official");
                late += noted && lower != null && time <= lower && time > exempt ? 1 : 0;
                if (events != null) {
                    events.add(event);
                }
            }
            TimeWindow window = reader.getCurrentTimeWindow(stream);
            Long now = window.getLowerTimeBound();
            if (now != null) {
                back += lower != null && now < lower ? 1 : 0;
                lower = now;
                lowers.add(now);
            }
            if (window.getUpperTimeBound() != null) {
                upper = window.getUpperTimeBound();
            }
        }

        /** A reader that a truncation has overtaken is told so once for each segment, and goes on. */
        private String next() {
            try {
                return reader.readNextEvent(50).getEvent();
            } catch (TruncatedDataException told) {
                overtaken = true;
                return null;
            }
        }

        boolean until(Callable<Boolean> condition, Noter... noters) throws Exception {
            long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(Session.PATIENCE_S);
            while (!condition.call()) {
                if (System.nanoTime() > giveUp) {
                    return false;
                }
                for (Noter noter : noters) {
                    noter.note();
                }
                for (int look = 0; look < 4 * noters.length + 1; look++) {
                    look();
                }
            }
            return true;
        }

        /** Whether the lower bound takes new values while the writers go on. */
        boolean advances(Noter... noters) throws Exception {
            int before = lowers.size();
            return until(() -> lowers.size() >= before + DISTINCT, noters);
        }

        void report(Map<String, Object> seen) {
            seen.put("back", back);
            seen.put("late", late);
        }
    }

    private static Stream stream(Session session, int segments, long timeoutMs) throws Exception {
        // The manager does not send the timeout; what is under it does.
        session.controller().createStream(session.scope, "st", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(segments)).timestampAggregationTimeout(timeoutMs).build())
                .get(30, TimeUnit.SECONDS);
        return Stream.of(session.scope, "st");
    }

    static Follower follower(Session session, EventStreamClientFactory events, Stream stream, String group)
            throws Exception {
        session.group(session.groups(), group, stream);
        return new Follower(session.reader(events, "r-" + group, group), stream);
    }

    /** A writer that stops holds the bound back until somebody removes it. */
    static void removed(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 2, 600_000);
        Follower follower = follower(session, events, stream, "rg");
        Noter slow = new Noter(session, events, "slow", 0);
        Noter fast = new Noter(session, events, "fast", FAST);
        seen.put("advances", follower.advances(slow, fast));
        slow.writer.close();
        seen.put("reaches_last", follower.until(() -> follower.lower == slow.time, fast));
        long until = fast.time + 40;
        follower.until(() -> fast.time > until, fast);
        seen.put("held", follower.lower == slow.time);
        session.controller().removeWriter("slow", stream).get(30, TimeUnit.SECONDS);
        seen.put("released", follower.until(() -> follower.lower > FAST, fast));
        seen.put("goes_on", follower.advances(fast));
        follower.report(seen);
    }

    /** A writer that stops holds the bound back until its timeout; it may come back with times that are too early. */
    static void silent(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 2, 3_000);
        Follower follower = follower(session, events, stream, "rg");
        Noter slow = new Noter(session, events, "slow", 0);
        Noter fast = new Noter(session, events, "fast", FAST);
        seen.put("advances", follower.advances(slow, fast));
        seen.put("released", follower.until(() -> follower.lower > FAST, fast));
        // Its events are late now, and the bound never goes back for them.
        follower.exempt = FAST;
        slow.note();
        slow.time = fast.time;
        seen.put("goes_on", follower.advances(slow, fast));
        follower.report(seen);
    }

    /** What a note may not say, and that it changes nothing. */
    static void refused(Session session, Map<String, Object> seen) throws Exception {
        Stream stream = stream(session, 1, 600_000);
        Controller controller = session.controller();
        Segment segment = new Segment(session.scope, "st", 0);
        EventStreamClientFactory events = session.events();
        for (int number = 0; number < 10; number++) {
            session.writer(events, "st").writeEvent("k", "k:1").get(30, TimeUnit.SECONDS);
        }
        seen.put("first", answered(controller, stream, 100, Map.of(segment, 36L)));
        seen.put("again", answered(controller, stream, 100, Map.of(segment, 36L)));
        seen.put("time_back", answered(controller, stream, 99, Map.of(segment, 48L)));
        seen.put("position_back", answered(controller, stream, 101, Map.of(segment, 24L)));
        seen.put("beyond_tail", answered(controller, stream, 101, Map.of(segment, 1L << 40)));
        seen.put("negative_offset", answered(controller, stream, 101, Map.of(segment, -5L)));
        seen.put("other_segment", answered(controller, stream, 101, Map.of(new Segment(session.scope, "st", 7), 12L)));
        seen.put("nowhere", answered(controller, stream, 101, Map.of()));
        seen.put("no_stream", answered(controller, Stream.of(session.scope, "nothing"), 1, Map.of(segment, 0L)));
        seen.put("still", answered(controller, stream, 100, Map.of(segment, 36L)));
        seen.put("on", answered(controller, stream, Long.MAX_VALUE, Map.of(segment, 48L)));
        seen.put("removed", answered(() -> controller.removeWriter("w", stream).get(30, TimeUnit.SECONDS)));
        seen.put("removed_again", answered(() -> controller.removeWriter("w", stream).get(30, TimeUnit.SECONDS)));
        seen.put("removed_stranger", answered(() -> controller.removeWriter("x", stream).get(30, TimeUnit.SECONDS)));
        seen.put("removed_nowhere", answered(
                () -> controller.removeWriter("w", Stream.of(session.scope, "nothing")).get(30, TimeUnit.SECONDS)));
    }

    private static String answered(Controller controller, Stream stream, long time, Map<Segment, Long> position) {
        WriterPosition at = WriterPosition.builder().segments(position).build();
        return answered(() -> controller.noteTimestampFromWriter("w", stream, time, at).get(30, TimeUnit.SECONDS));
    }

    /** "none", or the last word of what the call says: the status, for what the client makes of a status. */
    private static String answered(Callable<?> call) {
        try {
            call.call();
            return "none";
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            String[] words = String.valueOf(cause.getMessage()).split(" ");
            return cause.getClass().getSimpleName() + " " + words[words.length - 1];
        }
    }

    /** The test kills the server at each step. */
    static void restart(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 2, 600_000);
        Follower follower = follower(session, events, stream, "rg");
        Noter slow = new Noter(session, events, "slow", 0);
        Noter fast = new Noter(session, events, "fast", FAST);
        seen.put("advances", follower.advances(slow, fast));
        session.step("kill");
        // Only the fast one goes on: the store must not have forgotten the slow one.
        seen.put("reaches_last", follower.until(() -> follower.lower == slow.time, fast));
        long until = fast.time + 40;
        follower.until(() -> fast.time > until, fast);
        seen.put("held", follower.lower == slow.time);
        session.step("kill");
        seen.put("goes_on", follower.advances(slow, fast));
        follower.report(seen);
        Follower fresh = follower(session, events, stream, "fresh");
        seen.put("fresh_reads_all", fresh.until(() -> fresh.count == follower.count && fresh.lower != null));
        seen.put("fresh_late", fresh.late);
    }

    /** Segments are split and merged while times are noted. */
    static void scaled(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 1, 600_000);
        Controller controller = session.controller();
        ScheduledExecutorService executor = session.executor();
        Follower follower = follower(session, events, stream, "rg");
        Noter one = new Noter(session, events, "one", 0);
        Noter two = new Noter(session, events, "two", 10);
        boolean advances = follower.advances(one, two);
        for (int count : new int[] {3, 2, 1, 4}) {
            seen.put("to_" + count, Scaling.scale(controller, executor, stream, count));
            advances &= follower.advances(one, two);
        }
        seen.put("advances", advances);
        seen.put("ahead", follower.lower > Math.min(one.time, two.time));
        follower.report(seen);
    }

    /** The head moves: readers from before it, at it, and behind it. */
    static void truncated(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 2, 600_000);
        ReaderGroupManager manager = session.groups();
        Follower follower = follower(session, events, stream, "rg");
        ReaderGroup behind = session.group(manager, "behind", stream);
        Noter noter = new Noter(session, events, "w", 0);
        seen.put("advances", follower.advances(noter));
        var cut = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getTailStreamCut();
        long before = noter.time;
        follower.until(() -> follower.lower >= before, noter);
        seen.put("truncated", session.streams.truncateStream(session.scope, "st", cut));
        seen.put("goes_on", follower.advances(noter));
        Follower fresh = follower(session, events, stream, "fresh");
        seen.put("fresh_advances", fresh.advances(noter) && fresh.until(() -> fresh.lower > before, noter));
        Follower late = new Follower(session.reader(events, "r-behind", "behind"), stream);
        seen.put("behind_advances", late.advances(noter) && late.until(() -> late.lower > before, noter));
        seen.put("overtaken", List.of(follower.overtaken, fresh.overtaken, late.overtaken));
        follower.report(seen);
        seen.put("fresh_late", fresh.late);
        seen.put("behind_late", late.late);
        behind.close();
    }

    /** A writer that notes the time by itself, every five seconds. */
    static void automatic(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = stream(session, 1, 600_000);
        Follower follower = follower(session, events, stream, "rg");
        long began = System.currentTimeMillis();
        EventStreamWriter<String> writer = session.open(events.createEventWriter(
                "clock", "st", Session.TEXT, EventWriterConfig.builder().automaticallyNoteTime(true).build()));
        boolean found = Session.eventually(() -> {
            writer.writeEvent("k", "k:" + System.currentTimeMillis()).get(30, TimeUnit.SECONDS);
            follower.look();
            return follower.lowers.size() >= 2;
        });
        seen.put("advances", found);
        seen.put("wall_clock", follower.lowers.first() >= began && follower.lower <= System.currentTimeMillis());
        follower.report(seen);
    }
}
