package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.StreamSegments;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;

/** Segments that are split and merged while they are written and read. */
final class Scaling {
    private static final int KEYS = 20;
    private static final int PER_SCALE = 1000;
    private static final List<Integer> COUNTS = List.of(4, 3, 1, 5, 2);

    private Scaling() {
    }

    /** All segments into {@code count} new ones. */
    static boolean scale(Controller controller, ScheduledExecutorService executor, Stream stream, int count)
            throws Exception {
        StreamSegments current =
                controller.getCurrentSegments(stream.getScope(), stream.getStreamName()).get(30, TimeUnit.SECONDS);
        List<Long> sealed = current.getSegments().stream().map(Segment::getSegmentId).collect(Collectors.toList());
        Map<Double, Double> ranges = new TreeMap<>();
        for (int index = 0; index < count; index++) {
            ranges.put((double) index / count, index == count - 1 ? 1.0 : (double) (index + 1) / count);
        }
        return controller.scaleStream(stream, sealed, ranges, executor).getFuture().get(60, TimeUnit.SECONDS);
    }

    static void scaling(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        // Scales go down to the segments that the policy asks for, and no further.
        Stream stream = session.stream("st", 1);
        Controller controller = session.controller();
        ScheduledExecutorService executor = session.executor();
        session.group(session.groups(), "rg", stream);
        int total = PER_SCALE * (COUNTS.size() + 1);
        List<List<String>> found = List.of(new ArrayList<>(), new ArrayList<>());
        AtomicBoolean done = new AtomicBoolean();
        List<Thread> readers = new ArrayList<>();
        for (int index = 0; index < 2; index++) {
            EventStreamReader<String> reader = session.reader(events, "r" + index, "rg");
            List<String> mine = found.get(index);
            readers.add(new Thread(() -> {
                while (!done.get()) {
                    String event = reader.readNextEvent(200).getEvent();
                    if (event != null) {
                        synchronized (mine) {
                            mine.add(event);
                        }
                    }
                }
            }));
        }
        readers.forEach(Thread::start);
        EventStreamWriter<String> writer = session.writer(events, "st");
        Thread writing = new Thread(() -> Session.write(writer, 0, total, KEYS));
        writing.start();
        List<Boolean> scaled = new ArrayList<>();
        for (int count : COUNTS) {
            scaled.add(scale(controller, executor, stream, count));
        }
        writing.join(60_000);
        seen.put("scaled", scaled);
        seen.put("all", Session.eventually(() -> sizeOf(found.get(0)) + sizeOf(found.get(1)) >= total));
        done.set(true);
        for (Thread reader : readers) {
            reader.join(10_000);
        }
        List<String> all = new ArrayList<>(found.get(0));
        all.addAll(found.get(1));
        Session.count(seen, all);
        List<String> alone = session.readAll(events, "alone", total, stream);
        seen.put("alone", alone.size());
        seen.put("alone_ordered", Session.isOrdered(alone));
        seen.put("segments", controller.getCurrentSegments(session.scope, "st").get(30, TimeUnit.SECONDS)
                .getSegments().size());
    }

    private static int sizeOf(List<String> found) {
        synchronized (found) {
            return found.size();
        }
    }

    static void calls(Session session, Map<String, Object> seen) throws Exception {
        Stream stream = session.stream("st", 2);
        Controller controller = session.controller();
        ScheduledExecutorService executor = session.executor();
        Segment first = new Segment(session.scope, "st", 0);
        seen.put("open", controller.isSegmentOpen(first).get(30, TimeUnit.SECONDS));
        seen.put("gap", controller.startScale(stream, List.of(0L), Map.of(0.0, 0.4)).get(30, TimeUnit.SECONDS));
        seen.put("split", controller.scaleStream(stream, List.of(0L), new TreeMap<>(Map.of(0.0, 0.25, 0.25, 0.5)), executor)
                .getFuture().get(60, TimeUnit.SECONDS));
        seen.put("open_after", controller.isSegmentOpen(first).get(30, TimeUnit.SECONDS));
        seen.put("done", controller.checkScaleStatus(stream, 0).get(30, TimeUnit.SECONDS));
        seen.put("sealed_again", controller.startScale(stream, List.of(0L), Map.of(0.0, 0.5)).get(30, TimeUnit.SECONDS));
        seen.put("under_minimum", controller.startScale(session.stream("two", 2), List.of(0L, 1L), Map.of(0.0, 1.0))
                .get(30, TimeUnit.SECONDS));
        seen.put("successors", controller.getSuccessors(first).get(30, TimeUnit.SECONDS).getSegmentToPredecessor().size());
        seen.put("epoch_0", controller.getEpochSegments(session.scope, "st", 0).get(30, TimeUnit.SECONDS).getSegments().size());
        seen.put("current", controller.getCurrentSegments(session.scope, "st").get(30, TimeUnit.SECONDS).getSegments().size());
        seen.put("missing", Session.thrown(
                () -> controller.getCurrentSegments(session.scope, "nothing").get(30, TimeUnit.SECONDS)));
    }
}
