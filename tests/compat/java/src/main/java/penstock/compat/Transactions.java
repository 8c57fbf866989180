package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionInfo;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/** Transactions of events. */
final class Transactions {
    private Transactions() {
    }

    private static TransactionalEventStreamWriter<String> writer(
            Session session, EventStreamClientFactory events, String id, String stream) {
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(30_000).build();
        return session.open(events.createTransactionalEventWriter(id, stream, Session.TEXT, config));
    }

    private static void write(Transaction<String> transaction, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            String key = "k" + number % 5;
            transaction.writeEvent(key, key + ":" + number);
        }
    }

    private static boolean becomes(Transaction<String> transaction, Transaction.Status status) throws Exception {
        return Session.eventually(() -> transaction.checkStatus() == status);
    }

    static void transactions(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 3);
        session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        TransactionalEventStreamWriter<String> writer = writer(session, events, "w", "st");
        Transaction<String> committed = writer.beginTxn();
        write(committed, 0, 50);
        committed.flush();
        seen.put("open", committed.checkStatus().toString());
        seen.put("unseen", Session.isDry(reader));
        committed.commit();
        seen.put("committed", becomes(committed, Transaction.Status.COMMITTED));
        seen.put("write_after", Session.thrown(() -> {
            committed.writeEvent("k0", "k0:999");
            committed.flush();
            return null;
        }));
        seen.put("commit_again", Session.thrown(() -> {
            writer.getTxn(committed.getTxnId()).commit();
            return null;
        }));
        Transaction<String> aborted = writer.beginTxn();
        write(aborted, 50, 60);
        aborted.flush();
        aborted.abort();
        seen.put("aborted", becomes(aborted, Transaction.Status.ABORTED));
        Transaction<String> resumed = writer.beginTxn();
        write(resumed, 60, 70);
        resumed.flush();
        Transaction<String> same = writer.getTxn(resumed.getTxnId());
        write(same, 70, 80);
        same.commit(1_700_000_000_000L);
        seen.put("resumed", becomes(same, Transaction.Status.COMMITTED));
        writer.beginTxn().commit();
        seen.put("unknown", Session.thrown(() -> writer.getTxn(new UUID(0, 77)).checkStatus()));
        List<String> found = Session.take(reader, 70);
        Session.count(seen, found);
        seen.put("ordered", Session.isOrdered(found));
        seen.put("dry", Session.isDry(reader));
        Map<String, Integer> statuses = new TreeMap<>();
        Session.eventually(() -> session.streams.listCompletedTransactions(stream).size() == 4);
        for (TransactionInfo item : session.streams.listCompletedTransactions(stream)) {
            statuses.merge(item.getTransactionStatus().toString(), 1, Integer::sum);
        }
        seen.put("completed", statuses);
    }

    /** The writer's pings keep a transaction open beyond its lease; without a writer it is aborted. */
    static void leases(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 1);
        EventWriterConfig brief = EventWriterConfig.builder().transactionTimeoutTime(10_000).build();
        TransactionalEventStreamWriter<String> writer =
                session.open(events.createTransactionalEventWriter("pings", "st", Session.TEXT, brief));
        Transaction<String> kept = writer.beginTxn();
        write(kept, 0, 5);
        Controller controller = session.controller();
        UUID left = controller.createTransaction(stream, 10_000).get(30, TimeUnit.SECONDS).getTxnId();
        seen.put("ping", controller.pingTransaction(stream, left, 10_000).get(30, TimeUnit.SECONDS).toString());
        seen.put("ping_too_long", Session.thrown(
                () -> controller.pingTransaction(stream, left, 999_999_999).get(30, TimeUnit.SECONDS).toString()));
        seen.put("lease_too_short", Session.thrown(
                () -> controller.createTransaction(stream, 5).get(30, TimeUnit.SECONDS)));
        seen.put("timed_out", Session.eventually(
                () -> controller.checkTransactionStatus(stream, left).get(30, TimeUnit.SECONDS) == Transaction.Status.ABORTED));
        seen.put("ping_aborted", controller.pingTransaction(stream, left, 10_000).get(30, TimeUnit.SECONDS).toString());
        Thread.sleep(2_500); // the other one was begun before; its lease is over for certain
        seen.put("kept", kept.checkStatus().toString());
        kept.commit();
        seen.put("committed", becomes(kept, Transaction.Status.COMMITTED));
        Session.count(seen, session.readAll(events, "rg", 5, stream));
    }

    /** One transaction on each of many streams, all open at once; and many after each other on one. */
    static void many(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        List<Transaction<String>> open = new ArrayList<>();
        Stream[] streams = new Stream[12];
        for (int index = 0; index < streams.length; index++) {
            streams[index] = session.stream("st" + index, 2);
            Transaction<String> transaction = writer(session, events, "w" + index, "st" + index).beginTxn();
            write(transaction, index * 10, index * 10 + 10);
            open.add(transaction);
        }
        for (Transaction<String> transaction : open) {
            transaction.commit();
        }
        boolean committed = true;
        for (Transaction<String> transaction : open) {
            committed &= becomes(transaction, Transaction.Status.COMMITTED);
        }
        seen.put("committed", committed);
        Session.count(seen, session.readAll(events, "rg", 120, streams));
        TransactionalEventStreamWriter<String> writer = writer(session, events, "row", "st0");
        for (int round = 0; round < 20; round++) {
            Transaction<String> transaction = writer.beginTxn();
            write(transaction, 1000 + round * 5, 1005 + round * 5);
            transaction.commit();
        }
        List<String> row = session.readAll(events, "rg-row", 110, streams[0]);
        seen.put("row", row.size());
        row.removeIf(text -> Integer.parseInt(text.split(":")[1]) < 1000);
        seen.put("row_ordered", Session.isOrdered(row));
    }

    /** Scales while a transaction is open: its events are behind those of before, and in front of those of after. */
    static void rolling(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 20);
        Transaction<String> transaction = writer(session, events, "w", "st").beginTxn();
        write(transaction, 100, 120);
        transaction.flush();
        EventStreamWriter<String> writer = session.writer(events, "st");
        seen.put("scaled", session.streams.updateStream(session.scope, "st",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(4)).build()));
        Session.write(writer, 20, 40, 7);
        write(transaction, 120, 140);
        transaction.commit();
        seen.put("committed", becomes(transaction, Transaction.Status.COMMITTED));
        Session.write(writer, 40, 60, 7);
        List<String> found = session.readAll(events, "rg", 100, stream);
        Session.count(seen, found);
        List<String> plain = new ArrayList<>(found);
        plain.removeIf(text -> Integer.parseInt(text.split(":")[1]) >= 100);
        found.removeAll(plain);
        seen.put("ordered", Session.isOrdered(plain) && Session.isOrdered(found));
        seen.put("segments", session.controller().getCurrentSegments(session.scope, "st")
                .get(30, TimeUnit.SECONDS).getSegments().size());
    }
}
