package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Transactions that stay open while their stream scales again and again. */
final class Rolling {
    private static final int KEYS = 5;
    /** How each transaction is placed among the commits: the numbers of its events begin there. */
    private static final int[] PLACES = {1000, 2000, 0};
    private static final int[] COUNTS = {3, 2, 4};

    private Rolling() {
    }

    private static TransactionalEventStreamWriter<String> writer(Session session, EventStreamClientFactory events) {
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(120_000).build();
        return session.open(events.createTransactionalEventWriter("txns", "st", Session.TEXT, config));
    }

    private static void write(Transaction<String> transaction, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            String key = "t" + number % KEYS;
            transaction.writeEvent(key, key + ":" + number);
        }
        transaction.flush();
    }

    private static int segments(Session session) throws Exception {
        return session.controller().getCurrentSegments(session.scope, "st").get(30, TimeUnit.SECONDS)
                .getSegments().size();
    }

    private static boolean commit(Transaction<String> transaction) throws Exception {
        transaction.commit();
        return Session.eventually(() -> transaction.checkStatus() == Transaction.Status.COMMITTED);
    }

    private static void report(Map<String, Object> seen, List<String> found, int expected) {
        seen.put("complete", found.size() == expected && new java.util.HashSet<>(found).size() == expected);
        List<String> plain = new ArrayList<>(found);
        plain.removeIf(text -> text.startsWith("t"));
        found.removeAll(plain);
        seen.put("plain_ordered", Session.isOrdered(plain));
        // The numbers grow in the order of the commits, so this holds their order too.
        seen.put("transactions_ordered", Session.isOrdered(found));
    }

    /** Three transactions over three scales and a fourth between their commits, which come in another order. */
    static void byHand(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 1);
        Controller controller = session.controller();
        EventStreamWriter<String> plain = session.writer(events, "st");
        TransactionalEventStreamWriter<String> writer = writer(session, events);
        List<Transaction<String>> open = new ArrayList<>();
        List<Boolean> scaled = new ArrayList<>();
        for (int round = 0; round < COUNTS.length; round++) {
            Transaction<String> begun = writer.beginTxn();
            open.add(begun);
            write(begun, PLACES[round], PLACES[round] + 10);
            Session.write(plain, round * 20, round * 20 + 20, KEYS);
            scaled.add(Scaling.scale(controller, session.executor(), stream, COUNTS[round]));
            // Each of the earlier ones still writes to the segments of the epoch in which it began.
            for (int index = 0; index <= round; index++) {
                int next = PLACES[index] + 10 + (round - index) * 10;
                write(open.get(index), next, next + 10);
            }
        }
        seen.put("still_open", open.stream().allMatch(item -> item.checkStatus() == Transaction.Status.OPEN));
        boolean committed = commit(open.get(2));
        Session.write(plain, 60, 80, KEYS);
        committed &= commit(open.get(0));
        scaled.add(Scaling.scale(controller, session.executor(), stream, 2));
        committed &= commit(open.get(1));
        Session.write(plain, 80, 100, KEYS);
        seen.put("scaled", scaled.stream().allMatch(item -> item));
        seen.put("committed", committed);
        seen.put("segments", segments(session));
        report(seen, session.readAll(events, "rg", 190, stream), 190);
    }

    /** Transactions that are open while a load splits the stream and silence merges it again. */
    static void byRate(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        session.stream("st", 1);
        session.streams.updateStream(session.scope, "st", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(200, 3, 1)).build());
        Stream stream = Stream.of(session.scope, "st");
        EventStreamWriter<String> plain = session.writer(events, "st");
        TransactionalEventStreamWriter<String> writer = writer(session, events);
        List<Transaction<String>> open = new ArrayList<>();
        int written = 0;
        int most = 1;
        open.add(writer.beginTxn());
        write(open.get(0), 0, 10);
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (most < 4 && System.nanoTime() < giveUp) {
            Session.write(plain, written, written + 200, KEYS * 4);
            written += 200;
            int now = segments(session);
            if (now > most) {
                most = now;
                int place = open.size() * 1000;
                open.add(writer.beginTxn());
                write(open.get(open.size() - 1), place, place + 10);
                write(open.get(0), open.size() * 10, open.size() * 10 + 10);
            }
        }
        seen.put("split", most >= 4);
        seen.put("merged", Session.eventually(() -> segments(session) == 1));
        seen.put("still_open", open.stream().allMatch(item -> item.checkStatus() == Transaction.Status.OPEN));
        boolean committed = true;
        for (Transaction<String> transaction : open) {
            committed &= commit(transaction);
        }
        seen.put("committed", committed);
        Session.write(plain, written, written + 20, KEYS * 4);
        int expected = written + 20 + 10 * open.size() + 10 * (open.size() - 1);
        report(seen, session.readAll(events, "rg", expected, stream), expected);
    }
}
