import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.ArrayList;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * BookKeeper's own client, for tests of ours. Run from its source with `java -cp LIB/* JavaLedgers.java URI COMMAND ...`.
 *
 * write COUNT BYTES close|open    a ledger of COUNT entries; prints its id
 * read|recover|batch LEDGER       prints "closed last length entries digest-of-the-contents"
 * latency COUNT BYTES             one entry at a time, after as many to warm up; prints "p50 p99" in microseconds
 * rate COUNT BYTES                1,000 entries at a time, after as many to warm up; prints entries per second
 */
public class JavaLedgers {
  public static void main(String[] args) throws Exception {
    ClientConfiguration conf = new ClientConfiguration();
    conf.setMetadataServiceUri(args[0]);
    conf.setUseV2WireProtocol(true);
    conf.setBatchReadEnabled(args[1].equals("batch"));
    conf.setNumIOThreads(1);
    try (BookKeeper client = BookKeeper.newBuilder(conf).build()) {
      if (args[1].equals("write")) {
        write(client, Integer.parseInt(args[2]), Integer.parseInt(args[3]), args[4].equals("close"));
      } else if (args[1].equals("latency")) {
        latency(client, Integer.parseInt(args[2]), Integer.parseInt(args[3]));
      } else if (args[1].equals("rate")) {
        rate(client, Integer.parseInt(args[2]), Integer.parseInt(args[3]));
      } else {
        read(client, args[1], Long.parseLong(args[2]));
      }
      System.out.flush();
      Runtime.getRuntime().halt(0);  // a ledger left open stays open
    }
  }

  static byte[] payload(int index, int size) {
    byte[] data = new byte[size];
    Arrays.fill(data, (byte) index);
    return data;
  }

  static WriteHandle create(BookKeeper client) throws Exception {
    return client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
        .withDigestType(DigestType.CRC32C).withPassword(new byte[0]).execute().get();
  }

  static void latency(BookKeeper client, int count, int size) throws Exception {
    WriteHandle ledger = create(client);
    byte[] data = payload(1, size);
    long[] taken = new long[count];
    for (int i = -count; i < count; i++) {
      long since = System.nanoTime();
      ledger.append(data);
      if (i >= 0) {
        taken[i] = System.nanoTime() - since;
      }
    }
    Arrays.sort(taken);
    System.out.println(taken[count / 2] / 1000.0 + " " + taken[count * 99 / 100] / 1000.0);
  }

  static void rate(BookKeeper client, int count, int size) throws Exception {
    WriteHandle ledger = create(client);
    byte[] data = payload(1, size);
    java.util.concurrent.Semaphore window = new java.util.concurrent.Semaphore(1000);
    long since = 0;
    for (int i = -count; i <= count; i++) {
      if (i == 0 || i == count) {
        window.acquire(1000);
        window.release(1000);
        if (i == count) {
          break;
        }
        since = System.nanoTime();
      }
      window.acquire();
      ledger.appendAsync(data).whenComplete((id, error) -> {
        if (error != null) {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
        }
        window.release();
      });
    }
    System.out.println(count * 1e9 / (System.nanoTime() - since));
  }

  static void write(BookKeeper client, int count, int size, boolean close) throws Exception {
    WriteHandle ledger = create(client);
    List<CompletableFuture<Long>> added = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      added.add(ledger.appendAsync(payload(i, size)));
    }
    for (CompletableFuture<Long> one : added) {
      one.get();
    }
    if (close) {
      ledger.close();
    }
    System.out.println(ledger.getId());
  }

  static void read(BookKeeper client, String command, long id) throws Exception {
    ReadHandle ledger = client.newOpenLedgerOp().withLedgerId(id).withRecovery(command.equals("recover"))
        .withDigestType(DigestType.CRC32C).withPassword(new byte[0]).execute().get();
    long last = ledger.getLastAddConfirmed();
    long entries = 0;
    java.security.MessageDigest digest = java.security.MessageDigest.getInstance("SHA-256");
    while (entries <= last) {
      try (LedgerEntries found = command.equals("batch")
          ? ledger.batchRead(entries, 100, 1 << 20) : ledger.read(entries, Math.min(last, entries + 99))) {
        for (LedgerEntry entry : found) {
          digest.update(entry.getEntryBytes());
          entries++;
        }
      }
    }
    StringBuilder hex = new StringBuilder();
    for (byte b : digest.digest()) {
      hex.append(String.format("%02x", b));
    }
    System.out.println(ledger.isClosed() + " " + last + " " + ledger.getLength() + " " + entries + " " + hex);
  }
}
