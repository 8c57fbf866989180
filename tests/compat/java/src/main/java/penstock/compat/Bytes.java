package penstock.compat;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Streams of bytes without events. */
final class Bytes {
    private Bytes() {
    }

    /** Exactly so many bytes. {@code readNBytes} cannot be used: it ends with a read of no bytes, and this client waits then. */
    private static byte[] bytesOf(ByteStreamReader reader, int count) throws IOException {
        byte[] data = new byte[count];
        int done = 0;
        while (done < count) {
            int more = reader.read(data, done, count - done);
            if (more < 0) {
                throw new IOException("the stream ended early");
            }
            done += more;
        }
        return data;
    }

    /** A stream whose bytes both this client and Python write and read. */
    static void shared(Session session, Map<String, Object> seen) throws Exception {
        session.stream("st", 1);
        ByteStreamClientFactory factory = session.bytes();
        ByteStreamWriter writer = session.open(factory.createByteStreamWriter("st"));
        writer.write("from java;".getBytes(StandardCharsets.UTF_8));
        writer.flush();
        session.step("written");
        ByteStreamReader reader = session.open(factory.createByteStreamReader("st"));
        seen.put("head", reader.fetchHeadOffset());
        reader.seekToOffset(5);
        seen.put("text", new String(bytesOf(reader, 17), StandardCharsets.UTF_8));
        writer.write("java again;".getBytes(StandardCharsets.UTF_8));
        writer.flush();
        writer.truncateDataBefore(10);
        session.step("truncated");
        seen.put("tail", writer.fetchTailOffset());
        ByteArrayOutputStream end = new ByteArrayOutputStream();
        reader.transferTo(end);
        seen.put("rest", end.toString(StandardCharsets.UTF_8).length());
    }

    static void bytes(Session session, Map<String, Object> seen) throws Exception {
        session.stream("st", 1);
        ByteStreamClientFactory factory = session.bytes();
        ByteStreamWriter writer = session.open(factory.createByteStreamWriter("st"));
        ByteStreamReader reader = session.open(factory.createByteStreamReader("st"));
        writer.write("hello, bytes".getBytes(StandardCharsets.UTF_8));
        writer.flush();
        seen.put("text", new String(bytesOf(reader, 12), StandardCharsets.UTF_8));
        CompletableFuture<Integer> more = reader.onDataAvailable();
        seen.put("nothing_yet", more.isDone());
        byte[] data = new byte[3_000_000];
        new java.util.Random(1).nextBytes(data);
        writer.write(data);
        writer.flush();
        seen.put("woken", more.get(30, TimeUnit.SECONDS) > 0);
        seen.put("same", Arrays.equals(data, bytesOf(reader, data.length)));
        seen.put("head", writer.fetchHeadOffset());
        seen.put("tail", writer.fetchTailOffset());
        reader.seekToOffset(7);
        seen.put("sought", new String(bytesOf(reader, 5), StandardCharsets.UTF_8));
        seen.put("offset", reader.getOffset());
        writer.truncateDataBefore(100);
        seen.put("head_after", reader.fetchHeadOffset());
        reader.seekToOffset(50);
        seen.put("truncated", Session.thrown(reader::read));
        // A second writer goes on where the first one is.
        try (ByteStreamWriter second = factory.createByteStreamWriter("st")) {
            second.write("second".getBytes(StandardCharsets.UTF_8));
            second.flush();
            seen.put("tail_of_second", second.fetchTailOffset());
        }
        writer.write(new byte[] {1, 2, 3});
        writer.closeAndSeal();
        ByteStreamReader rest = session.open(factory.createByteStreamReader("st"));
        rest.seekToOffset(12 + data.length);
        ByteArrayOutputStream end = new ByteArrayOutputStream();
        rest.transferTo(end);
        seen.put("rest", Arrays.toString(Arrays.copyOfRange(end.toByteArray(), 6, end.size())));
        seen.put("end", rest.read());
        seen.put("write_sealed", Session.thrown(() -> {
            try (ByteStreamWriter late = factory.createByteStreamWriter("st")) {
                late.write(1);
                late.flush();
            }
            return null;
        }));
        seen.put("stream_sealed", session.streams.sealStream(session.scope, "st"));
    }
}
