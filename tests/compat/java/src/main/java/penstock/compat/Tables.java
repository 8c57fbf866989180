package penstock.compat;

import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.IteratorItem;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import io.pravega.common.util.AsyncIterator;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Key-value tables. */
final class Tables {
    private Tables() {
    }

    private static ByteBuffer bytes(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(ByteBuffer bytes) {
        return StandardCharsets.UTF_8.decode(bytes.duplicate()).toString();
    }

    private static TableKey key(String primary, String secondary) {
        return new TableKey(bytes(primary), bytes(secondary));
    }

    private static <T> T result(CompletableFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    static KeyValueTable table(Session session, String name, int partitions, int primary, int secondary) {
        KeyValueTableConfiguration config = KeyValueTableConfiguration.builder()
                .partitionCount(partitions).primaryKeyLength(primary).secondaryKeyLength(secondary).build();
        session.tableManager().createKeyValueTable(session.scope, name, config);
        return session.open(session.tables().forKeyValueTable(name, KeyValueTableClientConfiguration.builder().build()));
    }

    static void tables(Session session, Map<String, Object> seen) throws Exception {
        KeyValueTableManager manager = session.tableManager();
        KeyValueTableConfiguration config = KeyValueTableConfiguration.builder()
                .partitionCount(3).primaryKeyLength(4).secondaryKeyLength(2).build();
        seen.put("created", manager.createKeyValueTable(session.scope, "kvt", config));
        seen.put("again", manager.createKeyValueTable(session.scope, "kvt", config));
        seen.put("scope_missing", Session.thrown(() -> manager.createKeyValueTable("java-nowhere", "kvt", config)));
        KeyValueTable table = table(session, "kvt", 3, 4, 2);
        Version first = result(table.update(new Insert(key("aaaa", "01"), bytes("one"))));
        seen.put("insert_again", Session.thrown(
                () -> result(table.update(new Insert(key("aaaa", "01"), bytes("two"))))));
        seen.put("put", result(table.update(new Put(key("aaaa", "01"), bytes("two")))) != null);
        seen.put("old_version", Session.thrown(
                () -> result(table.update(new Put(key("aaaa", "01"), bytes("three"), first)))));
        Version now = result(table.get(key("aaaa", "01"))).getVersion();
        Version later = result(table.update(new Put(key("aaaa", "01"), bytes("four"), Version.fromString(now.toString()))));
        seen.put("versions_grow", later.asImpl().getSegmentVersion() > now.asImpl().getSegmentVersion());
        seen.put("absent_version", Session.thrown(
                () -> result(table.update(new Put(key("gone", "01"), bytes("x"), later)))));
        seen.put("value", text(result(table.get(key("aaaa", "01"))).getValue()));
        seen.put("missing", result(table.get(key("none", "01"))));
        seen.put("exists", result(table.exists(key("aaaa", "01"))));
        seen.put("exists_not", result(table.exists(key("aaaa", "02"))));
        // Several keys of one primary key, all or none.
        List<TableModification> several = new ArrayList<>();
        for (int number = 2; number < 40; number++) {
            several.add(new Insert(key("aaaa", String.format("%02d", number)), bytes("v" + number)));
        }
        seen.put("several", result(table.update(several)).size());
        List<TableModification> refused = List.of(
                new Put(key("aaaa", "50"), bytes("x")), new Insert(key("aaaa", "02"), bytes("x")));
        seen.put("refused", Session.thrown(() -> result(table.update(refused))));
        seen.put("not_half", result(table.get(key("aaaa", "50"))));
        List<TableModification> mixed = List.of(
                new Remove(key("aaaa", "02")), new Remove(key("aaaa", "03")));
        seen.put("removed", Session.thrown(() -> result(table.update(mixed))));
        seen.put("remove_old", Session.thrown(() -> result(table.update(new Remove(key("aaaa", "01"), first)))));
        result(table.update(new Remove(key("aaaa", "01"), later)));
        seen.put("remove_missing", Session.thrown(() -> result(table.update(new Remove(key("aaaa", "01"))))));
        List<TableKey> wanted = List.of(key("none", "00"), key("aaaa", "04"), key("aaaa", "01"), key("aaaa", "05"));
        List<String> values = new ArrayList<>();
        for (TableEntry entry : result(table.getAll(wanted))) {
            values.add(entry == null ? null : text(entry.getValue()));
        }
        seen.put("all", values);
        List<TableModification> many = new ArrayList<>();
        List<TableKey> manyKeys = new ArrayList<>();
        for (int number = 0; number < 250; number++) {
            TableKey key = key("many", new String(new char[] {(char) ('A' + number / 26), (char) ('a' + number % 26)}));
            many.add(new Insert(key, bytes("m" + number)));
            manyKeys.add(key);
        }
        seen.put("many", result(table.update(many)).size());
        // All keys of one partition go in one request, of at most 256 keys; the client leaves it to its user.
        for (int number = 0; number < 6; number++) {
            manyKeys.add(key(String.format("n%03d", number), "00"));
        }
        int there = 0;
        for (TableEntry entry : result(table.getAll(manyKeys))) {
            there += entry == null ? 0 : 1;
        }
        seen.put("many_there", there);
        List<TableModification> tooMany = new ArrayList<>();
        for (int number = 0; number < 300; number++) {
            tooMany.add(new Put(key("over", String.valueOf((char) ('A' + number / 26)) + (char) ('a' + number % 26)), bytes("x")));
        }
        seen.put("too_many", Session.thrown(() -> result(table.update(tooMany))));
        seen.put("none_of_them", result(table.get(key("over", "Aa"))));
        seen.put("too_large", Session.thrown(
                () -> result(table.update(new Put(key("larg", "02"), ByteBuffer.wrap(new byte[2 << 20]))))));
        seen.put("short_key", Session.thrown(() -> result(table.update(new Put(key("a", "01"), bytes("x"))))));
        byte[] large = new byte[1_000_000];
        result(table.update(new Put(key("larg", "01"), ByteBuffer.wrap(large))));
        seen.put("large", result(table.get(key("larg", "01"))).getValue().remaining());
        seen.put("empty_value", text(result(table.update(new Put(key("empt", "01"), bytes(""))).thenCompose(
                version -> table.get(key("empt", "01")))).getValue()));
        TreeSet<String> names = new TreeSet<>();
        manager.listKeyValueTables(session.scope).forEachRemaining(info -> names.add(info.getKeyValueTableName()));
        seen.put("names", names);
        seen.put("deleted", manager.deleteKeyValueTable(session.scope, "kvt"));
        seen.put("deleted_again", manager.deleteKeyValueTable(session.scope, "kvt"));
        seen.put("made_again", manager.createKeyValueTable(session.scope, "kvt", config));
        seen.put("empty_again", result(table(session, "kvt", 3, 4, 2).get(key("aaaa", "04"))));
    }

    static void iterators(Session session, Map<String, Object> seen) throws Exception {
        KeyValueTable table = table(session, "kvt", 4, 4, 3);
        List<CompletableFuture<?>> pending = new ArrayList<>();
        for (int primary = 0; primary < 10; primary++) {
            List<TableModification> puts = new ArrayList<>();
            for (int secondary = 0; secondary < 120; secondary++) {
                puts.add(new Put(key(String.format("p%03d", primary), String.format("%03d", secondary)),
                        bytes(primary + "/" + secondary)));
            }
            pending.add(table.update(puts));
        }
        for (CompletableFuture<?> item : pending) {
            result(item);
        }
        List<String> all = keys(table.iterator().maxIterationSize(50).all().keys());
        seen.put("all", all.size());
        seen.put("all_unique", new TreeSet<>(all).size());
        List<String> one = keys(table.iterator().maxIterationSize(7).forPrimaryKey(bytes("p003")).keys());
        seen.put("one", one.size());
        seen.put("sorted", one.equals(new ArrayList<>(new TreeSet<>(one))));
        List<String> range = keys(table.iterator().forPrimaryKey(bytes("p003"), bytes("010"), bytes("019")).keys());
        seen.put("range", List.of(range.get(0), range.get(range.size() - 1), range.size()));
        seen.put("prefix_secondary", keys(table.iterator().forPrimaryKey(bytes("p003"), bytes("01")).keys()).size());
        seen.put("prefix", keys(table.iterator().forPrefix(bytes("p00")).keys()).size());
        seen.put("between", new TreeSet<>(keys(table.iterator().forRange(bytes("p002"), bytes("p004")).keys())).size());
        List<String> values = new ArrayList<>();
        each(table.iterator().forPrimaryKey(bytes("p005")).entries(), entry -> values.add(text(entry.getValue())));
        seen.put("values", List.of(values.get(0), values.get(119), values.size()));
        seen.put("none", keys(table.iterator().forPrimaryKey(bytes("none")).keys()).size());
        KeyValueTable plain = table(session, "plain", 2, 8, 0);
        for (int number = 0; number < 30; number++) {
            result(plain.update(new Put(new TableKey(bytes(String.format("key-%04d", number))), bytes("v" + number))));
        }
        seen.put("plain", keys(plain.iterator().maxIterationSize(4).all().keys()).size());
        seen.put("plain_value", text(result(plain.get(new TableKey(bytes("key-0007")))).getValue()));
    }

    /** Two tables, one made by this client and one by Python; each client reads and changes both. */
    static void shared(Session session, Map<String, Object> seen) throws Exception {
        KeyValueTable own = table(session, "java", 5, 8, 2);
        for (int number = 0; number < 40; number++) {
            result(own.update(new Put(key(String.format("java%04d", number), "01"), bytes("j" + number))));
        }
        Version before = result(own.get(key("java0000", "01"))).getVersion();
        session.step("written");
        List<String> values = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            values.add(text(result(own.get(key(String.format("java%04d", number), "01"))).getValue()));
        }
        seen.put("values", values);
        seen.put("replaced", Session.thrown(() -> result(own.update(new Put(key("java0000", "01"), bytes("x"), before)))));
        seen.put("removed", result(own.get(key("java0001", "02"))));
        KeyValueTable theirs = session.open(
                session.tables().forKeyValueTable("python", KeyValueTableClientConfiguration.builder().build()));
        List<TableKey> wanted = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            wanted.add(new TableKey(bytes(String.format("py%04d", number))));
        }
        List<String> found = new ArrayList<>();
        for (TableEntry entry : result(theirs.getAll(wanted))) {
            found.add(entry == null ? null : text(entry.getValue()));
        }
        seen.put("found", found);
        seen.put("keys", new TreeSet<>(keys(theirs.iterator().all().keys())).size());
        TableEntry first = result(theirs.get(wanted.get(0)));
        result(theirs.update(new Put(wanted.get(0), bytes("from java"), first.getVersion())));
        seen.put("insert_again", Session.thrown(() -> result(theirs.update(new Insert(wanted.get(1), bytes("x"))))));
        result(theirs.update(new Remove(wanted.get(39))));
    }

    private interface Taker<T> {
        void take(T item);
    }

    private static <T> void each(AsyncIterator<IteratorItem<T>> pages, Taker<T> taker) throws Exception {
        IteratorItem<T> page;
        while ((page = result(pages.getNext())) != null) {
            page.getItems().forEach(taker::take);
        }
    }

    private static List<String> keys(AsyncIterator<IteratorItem<TableKey>> pages) throws Exception {
        List<String> found = new ArrayList<>();
        each(pages, key -> found.add(text(key.getPrimaryKey())
                + (key.getSecondaryKey() == null ? "" : text(key.getSecondaryKey()))));
        return found;
    }
}
