package penstock.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.ClientConfig;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.tables.KeyValueTableConfiguration;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/** Scopes and streams from creation to deletion. */
final class Admin {
    private Admin() {
    }

    static void scopes(Session session, Map<String, Object> seen) throws Exception {
        StreamManager streams = session.streams;
        seen.put("made", streams.createScope("java-fresh"));
        seen.put("again", streams.createScope("java-fresh"));
        seen.put("exists", streams.checkScopeExists("java-fresh"));
        seen.put("missing", streams.checkScopeExists("java-nowhere"));
        seen.put("listed", setOf(streams.listScopes()).contains("java-fresh"));
        seen.put("deleted", streams.deleteScope("java-fresh"));
        seen.put("deleted_again", streams.deleteScope("java-fresh"));
        seen.put("exists_after", streams.checkScopeExists("java-fresh"));
        for (String name : List.of("java-forced", "java-recursive")) {
            streams.createScope(name);
            StreamConfiguration one = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).build();
            streams.createStream(name, "st", one);
            var table = KeyValueTableConfiguration.builder().partitionCount(1).primaryKeyLength(4).build();
            session.tableManager().createKeyValueTable(name, "kvt", table);
            var manager = io.pravega.client.admin.ReaderGroupManager.withScope(name, session.config);
            session.open(manager);
            session.group(manager, "rg", Stream.of(name, "st"));
        }
        seen.put("refused", Session.thrown(() -> streams.deleteScope("java-forced")));
        seen.put("forced", streams.deleteScope("java-forced", true));
        seen.put("recursive", streams.deleteScopeRecursive("java-recursive"));
        seen.put("left", streams.checkScopeExists("java-forced") || streams.checkScopeExists("java-recursive"));
    }

    static void streams(Session session, Map<String, Object> seen) throws Exception {
        StreamManager streams = session.streams;
        StreamConfiguration first = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(3))
                .retentionPolicy(RetentionPolicy.bySizeBytes(10_000, 1_000_000))
                .tags(List.of("t1", "t2"))
                .timestampAggregationTimeout(5000)
                .rolloverSizeBytes(2 << 20)
                .build();
        // The manager sends only some fields of a configuration; what is under it sends all.
        seen.put("created", session.controller().createStream(session.scope, "st", first).get(30, TimeUnit.SECONDS));
        seen.put("duplicate", streams.createStream(session.scope, "st", first));
        seen.put("scope_missing", Session.thrown(() -> streams.createStream("java-nowhere", "st", first)));
        seen.put("exists", streams.checkStreamExists(session.scope, "st"));
        seen.put("missing", streams.checkStreamExists(session.scope, "nothing"));
        seen.put("tags", new TreeSet<>(streams.getStreamTags(session.scope, "st")));
        StreamInfo info = streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS);
        seen.put("same_config", info.getStreamConfiguration().equals(first));
        seen.put("head_is_tail", info.getHeadStreamCut().equals(info.getTailStreamCut()));
        seen.put("sealed_before", info.isSealed());
        StreamConfiguration second = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(3))
                .retentionPolicy(RetentionPolicy.byTime(Duration.ofMinutes(1), Duration.ofHours(1)))
                .tag("t3")
                .build();
        seen.put("updated", streams.updateStream(session.scope, "st", second));
        seen.put("tags_after", new TreeSet<>(streams.getStreamTags(session.scope, "st")));
        info = streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS);
        seen.put("same_config_after", info.getStreamConfiguration().equals(second));
        seen.put("update_missing", Session.thrown(() -> streams.updateStream(session.scope, "nothing", second)));
        seen.put("delete_open", Session.thrown(() -> streams.deleteStream(session.scope, "st")));
        seen.put("sealed", streams.sealStream(session.scope, "st"));
        seen.put("sealed_again", streams.sealStream(session.scope, "st"));
        seen.put("update_sealed", Session.thrown(() -> streams.updateStream(session.scope, "st", second)));
        seen.put("is_sealed", streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).isSealed());
        seen.put("deleted", streams.deleteStream(session.scope, "st"));
        seen.put("deleted_again", streams.deleteStream(session.scope, "st"));
        seen.put("seal_missing", Session.thrown(() -> streams.sealStream(session.scope, "st")));
        seen.put("made_again", streams.createStream(session.scope, "st", first));
        List<Boolean> automatic = new ArrayList<>();
        for (ScalingPolicy policy : List.of(ScalingPolicy.byEventRate(100, 2, 2), ScalingPolicy.byDataRate(1000, 3, 1))) {
            StreamConfiguration config = StreamConfiguration.builder().scalingPolicy(policy).build();
            String name = "auto" + automatic.size();
            automatic.add(streams.createStream(session.scope, name, config)
                    && streams.fetchStreamInfo(session.scope, name).get(30, TimeUnit.SECONDS)
                            .getStreamConfiguration().equals(config));
        }
        seen.put("automatic", automatic);
    }

    static void lists(Session session, Map<String, Object> seen) throws Exception {
        for (int number = 0; number < 30; number++) {
            StreamConfiguration config = StreamConfiguration.builder()
                    .scalingPolicy(ScalingPolicy.fixed(1))
                    .tags(number % 3 == 0 ? List.of("third", "all") : List.of("all"))
                    .build();
            session.streams.createStream(session.scope, "s" + number, config);
        }
        seen.put("user_streams", namesOf(session.streams.listStreams(session.scope)).size());
        seen.put("third", namesOf(session.streams.listStreams(session.scope, "third")).size());
        seen.put("all", namesOf(session.streams.listStreams(session.scope, "all")).size());
        seen.put("none", namesOf(session.streams.listStreams(session.scope, "none")).size());
        session.streams.updateStream(session.scope, "s0",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).tag("moved").build());
        seen.put("third_after", namesOf(session.streams.listStreams(session.scope, "third")).size());
        seen.put("moved", namesOf(session.streams.listStreams(session.scope, "moved")));
        seen.put("scope_missing", Session.thrown(() -> session.streams.listStreams("java-nowhere").hasNext()));
    }

    /** Clients may be given one address of many, and ask it for all. */
    static void discovery(Session session, Map<String, Object> seen) throws Exception {
        ClientConfig config = ClientConfig.builder().controllerURI(URI.create("pravega://" + session.address)).build();
        StreamManager streams = session.open(StreamManager.create(config));
        seen.put("exists", streams.checkScopeExists(session.scope));
    }

    static void truncation(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 100);
        StreamCut middle = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getTailStreamCut();
        StreamCut first = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS).getHeadStreamCut();
        EventStreamWriter<String> writer = session.writer(events, "st");
        Session.write(writer, 100, 150, 7);
        var groups = session.groups();
        ReaderGroup before = session.group(groups, "before", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "before");
        EventRead<String> one = reader.readNextEvent(10_000);
        seen.put("truncated", session.streams.truncateStream(session.scope, "st", middle));
        seen.put("truncated_again", session.streams.truncateStream(session.scope, "st", middle));
        StreamInfo info = session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS);
        seen.put("head_is_cut", info.getHeadStreamCut().equals(middle));
        seen.put("backwards", Session.thrown(() -> session.streams.truncateStream(session.scope, "st", first)));
        seen.put("head_stays", session.streams.fetchStreamInfo(session.scope, "st").get(30, TimeUnit.SECONDS)
                .getHeadStreamCut().equals(middle));
        Session.count(seen, session.readAll(events, "after", 50, stream));
        seen.put("gone", Session.thrown(() -> reader.fetchEvent(one.getEventPointer())));
        seen.put("gone_for_manager", Session.thrown(
                () -> session.streams.fetchEvent(one.getEventPointer(), Session.TEXT).get(30, TimeUnit.SECONDS)));
        seen.put("unread_after", before.getMetrics().unreadBytes() > 0);
        // The buffer of the reader may still hold what is gone; then it reports the truncation, once for each segment.
        List<String> rest = new ArrayList<>();
        int reported = 0;
        for (int calls = 0; calls < 1000 && rest.stream().filter(text -> numberOf(text) >= 100).count() < 50; calls++) {
            try {
                String text = reader.readNextEvent(Session.READ_MS).getEvent();
                if (text != null) {
                    rest.add(text);
                }
            } catch (TruncatedDataException error) {
                reported++;
            }
        }
        seen.put("rest", rest.stream().filter(text -> numberOf(text) >= 100).count());
        seen.put("reported", reported);
    }

    private static int numberOf(String text) {
        return Integer.parseInt(text.split(":")[1]);
    }

    static void sealing(Session session, Map<String, Object> seen) throws Exception {
        EventStreamClientFactory events = session.events();
        Stream stream = session.filled(events, "st", 2, 60);
        EventStreamWriter<String> writer = session.writer(events, "st");
        writer.writeEvent("k0", "k0:60").get(30, TimeUnit.SECONDS);
        ReaderGroup group = session.group(session.groups(), "rg", stream);
        EventStreamReader<String> reader = session.reader(events, "r", "rg");
        List<String> found = Session.take(reader, 30);
        seen.put("sealed", session.streams.sealStream(session.scope, "st"));
        // The client reports it by the future or by the call, whichever comes first.
        seen.put("write", Session.thrown(() -> writer.writeEvent("k0", "k0:61").get(30, TimeUnit.SECONDS)));
        boolean completed = false;
        for (int calls = 0; calls < 200 && !completed; calls++) {
            EventRead<String> event = reader.readNextEvent(200);
            if (event.getEvent() != null) {
                found.add(event.getEvent());
            }
            completed = event.isReadCompleted();
        }
        seen.put("completed", completed);
        Session.count(seen, found);
        seen.put("new_writer", Session.thrown(() -> {
            try (EventStreamWriter<String> late = session.writer(events, "st")) {
                return late.writeEvent("k0", "k0:62").get(30, TimeUnit.SECONDS);
            }
        }));
        seen.put("names", group.getStreamNames());
        reader.close();
        seen.put("deleted", session.streams.deleteStream(session.scope, "st"));
        seen.put("writer_of_none", Session.thrown(() -> session.writer(events, "st")));
    }

    private static TreeSet<String> setOf(Iterator<String> items) {
        TreeSet<String> found = new TreeSet<>();
        items.forEachRemaining(found::add);
        return found;
    }

    /** Names of users' streams; the manager lists internal ones as well. */
    private static TreeSet<String> namesOf(Iterator<Stream> streams) {
        TreeSet<String> names = new TreeSet<>();
        streams.forEachRemaining(stream -> {
            if (!stream.getStreamName().startsWith("_")) {
                names.add(stream.getStreamName());
            }
        });
        return names;
    }
}
