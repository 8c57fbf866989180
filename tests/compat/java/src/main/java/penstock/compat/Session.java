package penstock.compat;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Serializer;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** The official client, connected, with a scope of its own named after the scenario. Closes what it opened. */
final class Session implements AutoCloseable {
    interface Dialogue {
        String step(Map<String, Object> step) throws Exception;
    }

    /** Of all users of a server with users. */
    static final String PASSWORD = System.getenv("COMPAT_PASSWORD");

    static final Serializer<String> TEXT = new UTF8StringSerializer();
    static final long READ_MS = 1000;
    static final long PATIENCE_S = 60;

    final String address;
    final String scope;
    final ClientConfig config;
    final StreamManager streams;
    private final Dialogue dialogue;
    private final Deque<AutoCloseable> opened = new ArrayDeque<>();

    Session(String address, String scenario, Dialogue dialogue) {
        this.address = address;
        this.scope = "java-" + scenario;
        this.dialogue = dialogue;
        this.config = configured(address, System.getenv("COMPAT_USER"), PASSWORD);
        this.streams = open(StreamManager.create(config));
        this.streams.createScope(scope);
    }

    /** How to connect. {@code user}: null without credentials. */
    static ClientConfig configured(String address, String user, String password) {
        var config = ClientConfig.builder();
        // A file of authorities to trust, in PEM: the server has TLS.
        String trust = System.getProperty("compat.trust");
        if (trust == null) {
            config.controllerURI(URI.create("tcp://" + address));
        } else {
            config.controllerURI(URI.create("tls://" + address)).trustStore(trust).validateHostName(true);
        }
        return user == null ? config.build() : config.credentials(new DefaultCredentials(password, user)).build();
    }

    <T extends AutoCloseable> T open(T resource) {
        opened.push(resource);
        return resource;
    }

    @Override
    public void close() throws Exception {
        while (!opened.isEmpty()) {
            opened.pop().close();
        }
    }

    /** Tell the test where the scenario is, and wait until it says to go on. */
    String step(String word, Object... facts) throws Exception {
        Map<String, Object> step = new LinkedHashMap<>();
        step.put("step", word);
        for (int index = 0; index < facts.length; index += 2) {
            step.put((String) facts[index], facts[index + 1]);
        }
        return dialogue.step(step);
    }

    EventStreamClientFactory events() {
        return open(EventStreamClientFactory.withScope(scope, config));
    }

    ReaderGroupManager groups() {
        return open(ReaderGroupManager.withScope(scope, config));
    }

    BatchClientFactory batches() {
        return open(BatchClientFactory.withScope(scope, config));
    }

    ByteStreamClientFactory bytes() {
        return open(ByteStreamClientFactory.withScope(scope, config));
    }

    SynchronizerClientFactory synchronizers() {
        return open(SynchronizerClientFactory.withScope(scope, config));
    }

    KeyValueTableManager tableManager() {
        return open(KeyValueTableManager.create(config));
    }

    KeyValueTableFactory tables() {
        return open(KeyValueTableFactory.withScope(scope, config));
    }

    ScheduledExecutorService executor() {
        ScheduledExecutorService executor = Executors.newScheduledThreadPool(2);
        open(executor::shutdownNow);
        return executor;
    }

    Controller controller() {
        ControllerImplConfig settings = ControllerImplConfig.builder().clientConfig(config).build();
        return open(new ControllerImpl(settings, executor()));
    }

    Stream stream(String name, int segments) {
        streams.createStream(scope, name, StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build());
        return Stream.of(scope, name);
    }

    EventStreamWriter<String> writer(EventStreamClientFactory events, String stream) {
        return open(events.createEventWriter(stream, TEXT, EventWriterConfig.builder().build()));
    }

    /** A group that gives its events as soon as they are there. */
    ReaderGroup group(ReaderGroupManager manager, String name, Stream... of) throws Exception {
        var settings = ReaderGroupConfig.builder().automaticCheckpointIntervalMillis(1000).groupRefreshTimeMillis(500);
        for (Stream stream : of) {
            settings.stream(stream);
        }
        manager.createReaderGroup(name, settings.build());
        return open(manager.getReaderGroup(name));
    }

    EventStreamReader<String> reader(EventStreamClientFactory events, String id, String group) {
        ReaderConfig settings = ReaderConfig.builder().initialAllocationDelay(0).build();
        return open(events.createReader(id, group, TEXT, settings));
    }

    /** Write numbered events "key:number" with {@code keys} routing keys, in order. */
    static void write(EventStreamWriter<String> writer, int from, int to, int keys) {
        for (int number = from; number < to; number++) {
            String key = "k" + number % keys;
            writer.writeEvent(key, key + ":" + number);
        }
        writer.flush();
    }

    /** Write, and read all of it with one reader: the usual beginning. */
    Stream filled(EventStreamClientFactory events, String name, int segments, int count) {
        Stream stream = stream(name, segments);
        EventStreamWriter<String> writer = events.createEventWriter(name, TEXT, EventWriterConfig.builder().build());
        write(writer, 0, count, 7);
        writer.close();
        return stream;
    }

    /** What a new group named {@code group} reads of the streams from their heads. */
    List<String> readAll(EventStreamClientFactory events, String group, int expected, Stream... of) throws Exception {
        ReaderGroupManager manager = groups();
        group(manager, group, of);
        try (EventStreamReader<String> reader = reader(events, "r", group)) {
            return take(reader, expected);
        }
    }

    /** Events until {@code expected} have come, or none comes for long. */
    static List<String> take(EventStreamReader<String> reader, int expected) {
        return take(reader, expected, event -> { });
    }

    static List<String> take(EventStreamReader<String> reader, int expected, Consumer<EventRead<String>> each) {
        List<String> found = new ArrayList<>();
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (found.size() < expected && System.nanoTime() < giveUp) {
            EventRead<String> event = reader.readNextEvent(READ_MS);
            each.accept(event);
            if (event.getEvent() != null) {
                found.add(event.getEvent());
            }
        }
        return found;
    }

    /** Whether nothing more comes for a second. */
    static boolean isDry(EventStreamReader<String> reader) {
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(1);
        while (System.nanoTime() < giveUp) {
            if (reader.readNextEvent(200).getEvent() != null) {
                return false;
            }
        }
        return true;
    }

    static void count(Map<String, Object> seen, Collection<String> found) {
        seen.put("count", found.size());
        seen.put("unique", new HashSet<>(found).size());
    }

    /** Whether the numbers of each key come in ascending order. */
    static boolean isOrdered(List<String> found) {
        Map<String, Integer> last = new LinkedHashMap<>();
        for (String text : found) {
            String[] parts = text.split(":");
            int number = Integer.parseInt(parts[1]);
            Integer before = last.put(parts[0], number);
            if (before != null && before >= number) {
                return false;
            }
        }
        return true;
    }

    /** The name of what a call throws, without the wrappers of futures; "none" where it throws nothing. */
    static String thrown(Callable<?> call) {
        try {
            call.call();
            return "none";
        } catch (Throwable error) {
            return rootOf(error);
        }
    }

    static String rootOf(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null && (cause instanceof CompletionException || cause instanceof ExecutionException
                || cause.getClass() == RuntimeException.class)) {
            cause = cause.getCause();
        }
        return cause.getClass().getSimpleName();
    }

    /** Wait until a condition holds; false where it does not for long. */
    static boolean eventually(Callable<Boolean> condition) throws Exception {
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.call()) {
            if (System.nanoTime() > giveUp) {
                return false;
            }
            Thread.sleep(50);
        }
        return true;
    }
}
