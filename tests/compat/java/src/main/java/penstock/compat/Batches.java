package penstock.compat;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.batch.StreamSegmentsIterator;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Streams read segment by segment, between cuts, over scales and truncations. */
final class Batches {
    private Batches() {
    }

    static void batch(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 100);
        StreamCut first = tail(session);
        EventStreamWriter<String> writer = session.writer(events, "st");
        session.streams.updateStream(session.scope, "st",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(3)).build());
        Session.write(writer, 100, 200, 7);
        StreamCut second = tail(session);
        Session.write(writer, 200, 250, 7);
        BatchClientFactory batches = session.batches();
        StreamSegmentsIterator whole = batches.getSegments(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED);
        seen.put("ends", whole.getEndStreamCut().equals(tail(session)));
        List<String> all = read(batches, whole);
        Session.count(seen, all);
        seen.put("ordered", Session.isOrdered(all));
        List<String> between = read(batches, batches.getSegments(stream, first, second));
        seen.put("between", between.size());
        seen.put("inside", between.stream().mapToInt(text -> Integer.parseInt(text.split(":")[1]))
                .allMatch(number -> number >= 100 && number < 200));
        seen.put("nothing", read(batches, batches.getSegments(stream, second, second)).size());
        StreamSegmentsIterator old = batches.getSegments(stream, StreamCut.UNBOUNDED, second);
        seen.put("truncated", session.streams.truncateStream(session.scope, "st", first));
        seen.put("from_head", read(batches, batches.getSegments(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED)).size());
        seen.put("truncated_read", Session.thrown(() -> read(batches, old)));
    }

    private static StreamCut tail(Session session) throws Exception {
        return session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getTailStreamCut();
    }

    /** Events of all segments, the segments in the order of their ids. */
    private static List<String> read(BatchClientFactory batches, StreamSegmentsIterator segments) {
        List<SegmentRange> ranges = new ArrayList<>();
        Iterator<SegmentRange> items = segments.getIterator();
        items.forEachRemaining(ranges::add);
        ranges.sort((one, other) -> Long.compare(one.getSegmentId(), other.getSegmentId()));
        List<String> found = new ArrayList<>();
        for (SegmentRange range : ranges) {
            try (SegmentIterator<String> iterator = batches.readSegment(range, Session.TEXT)) {
                iterator.forEachRemaining(found::add);
            }
        }
        return found;
    }
}
