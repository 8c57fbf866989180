package penstock.compat;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.impl.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** Conditional appends: revisioned streams, and state that many processes change. */
final class Synchronizers {
    private static final int WRITERS = 4;
    private static final int ROUNDS = 25;

    private Synchronizers() {
    }

    static void revisions(Session session, Map<String, Object> seen) throws Exception {
        session.stream("st", 1);
        SynchronizerClientFactory factory = session.synchronizers();
        SynchronizerConfig config = SynchronizerConfig.builder().build();
        RevisionedStreamClient<String> one = session.open(factory.createRevisionedStreamClient("st", Session.TEXT, config));
        RevisionedStreamClient<String> other = session.open(factory.createRevisionedStreamClient("st", Session.TEXT, config));
        Revision empty = one.fetchLatestRevision();
        Revision first = one.writeConditionally(empty, "first");
        seen.put("written", first != null);
        seen.put("late", other.writeConditionally(empty, "late") == null);
        Revision second = other.writeConditionally(Revision.fromString(first.toString()), "second");
        seen.put("second", second != null);
        one.writeUnconditionally("third");
        seen.put("stale", one.writeConditionally(second, "stale") == null);
        seen.put("read", read(other.readFrom(empty)));
        seen.put("range", read(other.readRange(first, second)));
        seen.put("mark_before", one.getMark());
        seen.put("marked", one.compareAndSetMark(null, first));
        seen.put("marked_again", other.compareAndSetMark(null, second));
        seen.put("mark_moved", other.compareAndSetMark(first, second));
        seen.put("mark", one.getMark().equals(second));
        one.truncateToRevision(second);
        seen.put("oldest", other.fetchOldestRevision().equals(second));
        seen.put("rest", read(other.readFrom(second)));
        seen.put("truncated", Session.thrown(() -> read(other.readFrom(empty))));
        String large = "x".repeat(1 << 20);
        one.writeUnconditionally(large);
        seen.put("large", read(other.readFrom(second)).get(1).length());
    }

    private static List<String> read(Iterator<Map.Entry<Revision, String>> entries) {
        List<String> found = new ArrayList<>();
        entries.forEachRemaining(entry -> found.add(entry.getValue()));
        return found;
    }

    /** How often each of several writers added. */
    private static final class Sums implements Revisioned, Serializable {
        private static final long serialVersionUID = 1;
        final String stream;
        final transient Revision revision;
        final int[] sums;

        Sums(String stream, Revision revision, int[] sums) {
            this.stream = stream;
            this.revision = revision;
            this.sums = sums;
        }

        @Override
        public String getScopedStreamName() {
            return stream;
        }

        @Override
        public Revision getRevision() {
            return revision;
        }
    }

    private static final class Set implements InitialUpdate<Sums>, Serializable {
        private static final long serialVersionUID = 1;
        final int[] sums;

        Set(int[] sums) {
            this.sums = sums.clone();
        }

        @Override
        public Sums create(String stream, Revision revision) {
            return new Sums(stream, revision, sums.clone());
        }
    }

    /** Adds one to a sum, if it still has the value seen. */
    private static final class Add implements Update<Sums>, Serializable {
        private static final long serialVersionUID = 1;
        final int index;
        final int seen;

        Add(int index, int seen) {
            this.index = index;
            this.seen = seen;
        }

        @Override
        public Sums applyTo(Sums state, Revision revision) {
            if (state.sums[index] != seen) {
                throw new IllegalStateException("an update was applied to another state");
            }
            int[] sums = state.sums.clone();
            sums[index]++;
            return new Sums(state.stream, revision, sums);
        }
    }

    static void synchronizer(Session session, Map<String, Object> seen) throws Exception {
        session.stream("st", 1);
        SynchronizerClientFactory factory = session.synchronizers();
        List<Thread> threads = new ArrayList<>();
        List<Throwable> failures = new ArrayList<>();
        for (int writer = 0; writer < WRITERS; writer++) {
            StateSynchronizer<Sums> state = open(session, factory);
            state.initialize(new Set(new int[2]));
            int index = writer % 2;
            threads.add(new Thread(() -> {
                try {
                    for (int round = 0; round < ROUNDS; round++) {
                        state.fetchUpdates();
                        state.updateState((sums, updates) -> {
                            updates.add(new Add(index, sums.sums[index]));
                        });
                        if (round % 10 == 9) {
                            state.compact(sums -> new Set(sums.sums));
                        }
                    }
                } catch (Throwable error) {
                    synchronized (failures) {
                        failures.add(error);
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join(Session.PATIENCE_S * 1000);
        }
        seen.put("failures", failures.toString());
        StateSynchronizer<Sums> late = open(session, factory);
        late.fetchUpdates();
        seen.put("sums", late.getState().sums);
    }

    private static StateSynchronizer<Sums> open(Session session, SynchronizerClientFactory factory) {
        StateSynchronizer<Sums> state = factory.createStateSynchronizer(
                "st", new JavaSerializer<Add>(), new JavaSerializer<Set>(), SynchronizerConfig.builder().build());
        return session.open(state);
    }
}
