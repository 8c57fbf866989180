package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/** A writer whose load doubles each second, and readers, beside clients of other kinds on the same stream. */
final class Crowd {
    private static final int KEYS = 50;
    private static final int NOTED_EACH = 100;

    private Crowd() {
    }

    static void crowd(Session session, Map<String, Object> seen) throws Exception {
        session.controller().createStream(session.scope, "st", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(200, 4, 1)).timestampAggregationTimeout(600_000).build())
                .get(30, TimeUnit.SECONDS);
        Stream stream = Stream.of(session.scope, "st");
        String[] given = session.step("created").split(" ");
        int doublings = Integer.parseInt(given[0]);
        int count = Integer.parseInt(given[1]);
        int last = Integer.parseInt(given[2]);
        int expected = Integer.parseInt(given[3]);
        long origin = Long.parseLong(given[4]);

        EventStreamClientFactory events = session.events();
        AtomicBoolean done = new AtomicBoolean();
        List<Throwable> failures = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        List<List<String>> found = List.of(new ArrayList<>(), new ArrayList<>());
        session.group(session.groups(), "rg", stream);
        for (int index = 0; index < 2; index++) {
            EventStreamReader<String> reader = session.reader(events, "r" + index, "rg");
            List<String> mine = found.get(index);
            threads.add(thread(done, failures, () -> {
                String event = reader.readNextEvent(200).getEvent();
                if (event != null) {
                    synchronized (mine) {
                        mine.add(event);
                    }
                }
            }));
        }
        WatermarkEdges.Follower follower = WatermarkEdges.follower(session, events, stream, "times");
        follower.origin = origin;
        List<String> followed = follower.events = new ArrayList<>();
        threads.add(thread(done, failures, follower::look));
        threads.forEach(Thread::start);

        EventStreamWriter<String> writer = session.open(
                events.createEventWriter("java", "st", Session.TEXT, EventWriterConfig.builder().build()));
        // A writer that has noted nothing holds no bound back: all note once before the others go on.
        write(writer, 0, 1, origin);
        note(writer, origin);
        session.step("noted");
        long began = System.nanoTime();
        for (int written = 1; written < count;) {
            double seconds = (System.nanoTime() - began) / 1e9;
            double grown = Math.min(seconds, doublings);
            double due = (Math.pow(2, grown) - 1) / Math.log(2) + (seconds - grown) * Math.pow(2, doublings);
            written = write(writer, written, (int) Math.min(count, due), origin);
            Thread.sleep(20);
        }
        note(writer, origin + count - 1);
        session.step("written");
        write(writer, count, count + last, origin);
        note(writer, origin + count + last - 1);
        seen.put("all", Session.eventually(() -> followed.size() >= expected
                && sizeOf(found.get(0)) + sizeOf(found.get(1)) >= expected || !failures.isEmpty()));
        seen.put("covered", Session.eventually(() -> follower.lower != null && follower.lower >= origin + count - 1));
        done.set(true);
        for (Thread thread : threads) {
            thread.join(10_000);
        }
        seen.put("failures", failures.toString());
        List<String> all = new ArrayList<>(found.get(0));
        all.addAll(found.get(1));
        Session.count(seen, all);
        seen.put("followed", followed.size());
        seen.put("ordered", Session.isOrdered(followed));
        follower.report(seen);
    }

    private interface Step {
        void run() throws Exception;
    }

    private static Thread thread(AtomicBoolean done, List<Throwable> failures, Step step) {
        return new Thread(() -> {
            try {
                while (!done.get()) {
                    step.run();
                }
            } catch (Throwable error) {
                failures.add(error);
            }
        });
    }

    private static int sizeOf(List<String> found) {
        synchronized (found) {
            return found.size();
        }
    }

    /** Events "java.key:number", and a note after each hundred. The number is the time of the event. */
    private static int write(EventStreamWriter<String> writer, int from, int to, long origin) {
        for (int number = from; number < to; number++) {
            String key = "java.k" + number % KEYS;
            writer.writeEvent(key, key + ":" + number);
            if (number % NOTED_EACH == NOTED_EACH - 1) {
                note(writer, origin + number);
            }
        }
        return Math.max(from, to);
    }

    private static void note(EventStreamWriter<String> writer, long time) {
        writer.flush();
        writer.noteTime(time);
    }
}
