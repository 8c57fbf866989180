package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.state.Revision;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.TableKey;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/** The test kills the server and starts it again, at each step. */
final class Restart {
    private static final int KEYS = 10;
    private static final int KILLS = 3;

    private Restart() {
    }

    /** A writer and a reader that go on all the time. */
    static void restart(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.stream("st", 3);
        session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        EventStreamWriter<String> writer = session.writer(events, "st");
        AtomicBoolean writing = new AtomicBoolean(true);
        AtomicInteger written = new AtomicInteger();
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        List<String> found = new ArrayList<>();
        List<Throwable> failures = new ArrayList<>();
        Thread write = new Thread(() -> {
            while (writing.get()) {
                int number = written.getAndIncrement();
                String key = "k" + number % KEYS;
                CompletableFuture<Void> done = writer.writeEvent(key, key + ":" + number);
                done.whenComplete((nothing, error) -> (error == null ? acknowledged : failed).incrementAndGet());
                if (number % 20 == 0) {
                    done.join();
                }
            }
            writer.flush();
        });
        Thread read = new Thread(() -> {
            while (writing.get() || sizeOf(found) < written.get()) {
                try {
                    String event = reader.readNextEvent(200).getEvent();
                    if (event != null) {
                        synchronized (found) {
                            found.add(event);
                        }
                    }
                } catch (Throwable error) {
                    failures.add(error);
                    return;
                }
            }
        });
        write.start();
        read.start();
        for (int kill = 0; kill < KILLS; kill++) {
            int before = acknowledged.get();
            Session.eventually(() -> acknowledged.get() > before + 300 && sizeOf(found) > before);
            session.step("kill", "acknowledged", acknowledged.get());
        }
        int before = acknowledged.get();
        Session.eventually(() -> acknowledged.get() > before + 300);
        writing.set(false);
        write.join(60_000);
        read.join(60_000);
        seen.put("failures", failures.toString());
        seen.put("failed", failed.get());
        seen.put("all_acknowledged", acknowledged.get() == written.get());
        Session.eventually(() -> acknowledged.get() == written.get());
        seen.put("missing", written.get() - sizeOf(found));
        seen.put("twice", found.size() - new java.util.HashSet<>(found).size());
        seen.put("ordered", Session.isOrdered(found));
        List<String> alone = session.readAll(events, "alone", written.get(), stream);
        seen.put("alone_missing", written.get() - new java.util.HashSet<>(alone).size());
        seen.put("alone_ordered", Session.isOrdered(alone));
        seen.put("written", written.get());
    }

    private static int sizeOf(List<String> found) {
        synchronized (found) {
            return found.size();
        }
    }

    /** What was open or stored when the server was killed: a transaction, a group, a table, a mark. */
    static void state(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 50);
        ReaderGroup group = session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        List<String> found = Session.take(reader, 20);
        TransactionalEventStreamWriter<String> writer = session.open(events.createTransactionalEventWriter(
                "w", "st", Session.TEXT, EventWriterConfig.builder().transactionTimeoutTime(60_000).build()));
        Transaction<String> transaction = writer.beginTxn();
        for (int number = 100; number < 120; number++) {
            transaction.writeEvent("t", "t:" + number);
        }
        transaction.flush();
        KeyValueTable table = Tables.table(session, "kvt", 2, 4, 0);
        TableKey key = new TableKey(ByteBuffer.wrap(new byte[4]));
        table.update(new Put(key, ByteBuffer.wrap(new byte[] {7}))).get(30, TimeUnit.SECONDS);
        session.stream("log", 1);
        RevisionedStreamClient<String> log = session.open(session.synchronizers()
                .createRevisionedStreamClient("log", Session.TEXT, SynchronizerConfig.builder().build()));
        Revision revision = log.writeConditionally(log.fetchLatestRevision(), "one");
        log.compareAndSetMark(null, revision);
        session.step("kill");
        seen.put("open", transaction.checkStatus().toString());
        transaction.writeEvent("t", "t:120");
        transaction.commit();
        seen.put("committed", Session.eventually(() -> transaction.checkStatus() == Transaction.Status.COMMITTED));
        seen.put("table", table.get(key).get(30, TimeUnit.SECONDS).getValue().get(0));
        seen.put("mark", log.getMark().equals(revision));
        seen.put("conditional", log.writeConditionally(revision, "two") != null);
        seen.put("online", group.getOnlineReaders());
        found.addAll(Session.take(reader, 51));
        Session.count(seen, found);
        seen.put("dry", Session.isDry(reader));
    }
}
