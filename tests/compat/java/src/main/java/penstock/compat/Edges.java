package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** What goes on while something else ends: deleted and made again, sealed with an open transaction, truncated to the tail. */
final class Edges {
    private static final int WRITERS = 300;

    private Edges() {
    }

    static void remade(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 40);
        Session.count(seen, session.readAll(events, "rg", 40, stream));
        session.streams.sealStream(session.scope, "st");
        seen.put("deleted", session.streams.deleteStream(session.scope, "st"));
        session.filled(events, "st", 3, 30);
        seen.put("again", session.readAll(events, "rg2", 30, stream).size());
        seen.put("first_segment", session.controller().getCurrentSegments(session.scope, "st").get(30, TimeUnit.SECONDS)
                .getSegments().stream().mapToLong(item -> item.getSegmentId()).min().getAsLong());
    }

    static void sealedTransaction(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 10);
        TransactionalEventStreamWriter<String> writer = session.open(events.createTransactionalEventWriter(
                "w", "st", Session.TEXT, EventWriterConfig.builder().transactionTimeoutTime(30_000).build()));
        Transaction<String> transaction = writer.beginTxn();
        transaction.writeEvent("k", "k:10");
        transaction.flush();
        seen.put("sealed", session.streams.sealStream(session.scope, "st"));
        seen.put("status", transaction.checkStatus().toString());
        seen.put("commit", Session.thrown(() -> {
            transaction.commit();
            return null;
        }));
        seen.put("begin", Session.thrown(writer::beginTxn));
        Session.count(seen, session.readAll(events, "rg", 10, stream));
    }

    static void truncatedToTail(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 40);
        session.streams.updateStream(session.scope, "st",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(4)).build());
        EventStreamWriter<String> writer = session.writer(events, "st");
        Session.write(writer, 40, 80, 7);
        session.streams.updateStream(session.scope, "st",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).build());
        Session.write(writer, 80, 100, 7);
        seen.put("merged", session.controller().getCurrentSegments(session.scope, "st").get(30, TimeUnit.SECONDS)
                .getSegments().size());
        Session.count(seen, session.readAll(events, "whole", 100, stream));
        StreamCut tail = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getTailStreamCut();
        seen.put("truncated", session.streams.truncateStream(session.scope, "st", tail));
        Session.write(writer, 100, 110, 7);
        seen.put("rest", session.readAll(events, "rest", 10, stream).size());
        seen.put("sealed", session.streams.sealStream(session.scope, "st"));
        seen.put("rest_sealed", session.readAll(events, "sealed", 10, stream).size());
        seen.put("batch", session.batches().getSegments(stream, null, null).getIterator().hasNext());
    }

    /** Batches of events as large as they may be; a reader without time windows and with a small buffer. */
    static void batches(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 1);
        EventStreamWriter<String> writer = session.writer(events, "st");
        String large = "x".repeat(1 << 20);
        seen.put("seven", Session.thrown(() -> writer.writeEvents("k", Collections.nCopies(7, large)).get(30, TimeUnit.SECONDS)));
        seen.put("twelve", Session.thrown(() -> writer.writeEvents("k", Collections.nCopies(12, large)).get(30, TimeUnit.SECONDS)));
        seen.put("small", Session.thrown(() -> writer.writeEvents("k", Collections.nCopies(5000, "y")).get(30, TimeUnit.SECONDS)));
        session.group(session.groups(), "rg", stream);
        ReaderConfig config = ReaderConfig.builder().disableTimeWindows(true).bufferSize(64 * 1024).build();
        EventStreamReader<String> reader = session.open(events.createReader("r", "rg", Session.TEXT, config));
        List<String> found = new ArrayList<>();
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (System.nanoTime() < giveUp && found.size() < 5019) {
            EventRead<String> event = reader.readNextEvent(500);
            if (event.getEvent() != null) {
                found.add(event.getEvent());
            }
        }
        seen.put("count", found.size());
        seen.put("dry", Session.isDry(reader));
    }

    /** Many writers after each other, each with one event. */
    static void manyWriters(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 1);
        for (int number = 0; number < WRITERS; number++) {
            EventStreamWriter<String> writer =
                    events.createEventWriter("st", Session.TEXT, EventWriterConfig.builder().build());
            writer.writeEvent("k", "k:" + number);
            writer.close();
        }
        List<String> found = session.readAll(events, "rg", WRITERS, stream);
        Session.count(seen, found);
        seen.put("ordered", Session.isOrdered(found));
    }

    static void manyReaders(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 8, 2000);
        ReaderGroupManager manager = session.groups();
        manager.createReaderGroup("rg", ReaderGroupConfig.builder().groupRefreshTimeMillis(500)
                .automaticCheckpointIntervalMillis(1000).stream(stream).build());
        List<String> found = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < 6; index++) {
            EventStreamReader<String> reader = session.reader(events, "r" + index, "rg");
            threads.add(new Thread(() -> {
                long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
                while (found.size() < 2000 && System.nanoTime() < giveUp) {
                    String event = reader.readNextEvent(200).getEvent();
                    if (event != null) {
                        found.add(event);
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        Session.count(seen, found);
    }
}
