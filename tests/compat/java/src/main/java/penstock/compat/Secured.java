package penstock.compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.Transaction;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** A server with users: what it refuses, and how long streams outlive the tokens that they began with. */
final class Secured {
    /** Twice the 10 seconds for which the server's tokens are valid, and the 5 for which it takes appends after that. */
    private static final long LIVES_S = 32;

    private Secured() {
    }

    /** Users without credentials, with wrong ones, and with fewer rights. */
    static void refused(Session session, Map<String, Object> seen) throws Exception {
        Stream stream = session.filled(session.events(), "st", 2, 20);
        ClientConfig nobody = Session.configured(session.address, null, null);
        ClientConfig unknown = Session.configured(session.address, "nobody", "wrong");
        ClientConfig wrong = Session.configured(session.address, "ann", "wrong");
        ClientConfig reader = Session.configured(session.address, "rob", Session.PASSWORD);
        seen.put("nobody", create(nobody, session.scope));
        seen.put("unknown", create(unknown, session.scope));
        seen.put("wrong", create(wrong, session.scope));
        seen.put("reader_creates", create(reader, session.scope));
        seen.put("reader_writes", Session.thrown(() -> {
            try (EventStreamClientFactory events = EventStreamClientFactory.withScope(session.scope, reader);
                    EventStreamWriter<String> writer =
                            events.createEventWriter("st", Session.TEXT, EventWriterConfig.builder().build())) {
                writer.writeEvent("k0", "k0:999").get(Session.PATIENCE_S, TimeUnit.SECONDS);
            }
            return null;
        }));
        List<String> found;
        try (ReaderGroupManager groups = ReaderGroupManager.withScope(session.scope, reader);
                EventStreamClientFactory events = EventStreamClientFactory.withScope(session.scope, reader)) {
            groups.createReaderGroup("robs", ReaderGroupConfig.builder().stream(stream).build());
            try (EventStreamReader<String> one = events.createReader(
                    "r", "robs", Session.TEXT, ReaderConfig.builder().initialAllocationDelay(0).build())) {
                found = Session.take(one, 20);
            }
        }
        Session.count(seen, found);
    }

    private static String create(ClientConfig config, String scope) {
        return Session.thrown(() -> {
            try (StreamManager streams = StreamManager.create(config)) {
                streams.createStream(scope, "other",
                        StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).build());
            }
            return null;
        });
    }

    /** Writes and reads all the time, with one writer, one reader and one transaction, for longer than tokens are valid. */
    static void renewed(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 2);
        Stream other = session.stream("tx", 2);
        session.group(session.groups(), "rg", stream, other);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        EventStreamWriter<String> writer = session.writer(events, "st");
        var transactions = session.open(events.createTransactionalEventWriter(
                "w", "tx", Session.TEXT, EventWriterConfig.builder().transactionTimeoutTime(30_000).build()));
        Transaction<String> transaction = transactions.beginTxn();
        List<String> found = new ArrayList<>();
        int written = 0;
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIVES_S);
        while (System.nanoTime() < until) {
            Session.write(writer, written, written + 5, 5);
            transaction.writeEvent("t", "t:" + written);
            written += 5;
            String event = reader.readNextEvent(100).getEvent();
            if (event != null) {
                found.add(event);
            }
        }
        transaction.commit();
        seen.put("committed", Session.eventually(() -> transaction.checkStatus() == Transaction.Status.COMMITTED));
        int expected = written + written / 5;
        found.addAll(Session.take(reader, expected - found.size()));
        seen.put("missing", expected - found.size());
        Session.count(seen, found);
        seen.put("ordered", Session.isOrdered(found));
    }

    /** A reader that waits at a tail, and a writer that rests, until their tokens have expired. */
    static void rested(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 1);
        EventStreamWriter<String> writer = session.writer(events, "st");
        Session.write(writer, 0, 1, 1);
        session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        List<String> found = Session.take(reader, 1);
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIVES_S / 2);
        while (System.nanoTime() < until) {
            if (reader.readNextEvent(2000).getEvent() != null) {
                throw new IllegalStateException("nobody wrote");
            }
        }
        Session.write(writer, 1, 6, 1);
        found.addAll(Session.take(reader, 5));
        Session.count(seen, found);
        seen.put("ordered", Session.isOrdered(found));
    }
}
