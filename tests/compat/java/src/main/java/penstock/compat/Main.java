package penstock.compat;

import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Runs scenarios for the official Java client: started with the address of a controller, it reads the names of scenarios
 * from standard input, one a line, and prints one line of JSON for each, {"seen": facts} or {"error": stack trace}.
 *
 * <p>A scenario may print a line {"step": word, ...} itself, and then waits for a line of input.
 */
public final class Main {
    interface Scenario {
        void run(Session session, Map<String, Object> seen) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = new HashMap<>();

    static {
        SCENARIOS.put("scopes", Admin::scopes);
        SCENARIOS.put("streams", Admin::streams);
        SCENARIOS.put("lists", Admin::lists);
        SCENARIOS.put("discovery", Admin::discovery);
        SCENARIOS.put("truncation", Admin::truncation);
        SCENARIOS.put("sealing", Admin::sealing);
        SCENARIOS.put("events", Events::events);
        SCENARIOS.put("large-events", Events::largeEvents);
        SCENARIOS.put("throughput", Events::throughput);
        SCENARIOS.put("watermarks-of-one", Watermarks::one);
        SCENARIOS.put("watermarks-of-two", Watermarks::two);
        SCENARIOS.put("watermarks-of-transactions", Watermarks::transactions);
        SCENARIOS.put("watermarks-removed", WatermarkEdges::removed);
        SCENARIOS.put("watermarks-silent", WatermarkEdges::silent);
        SCENARIOS.put("watermarks-refused", WatermarkEdges::refused);
        SCENARIOS.put("watermarks-restart", WatermarkEdges::restart);
        SCENARIOS.put("watermarks-scaled", WatermarkEdges::scaled);
        SCENARIOS.put("watermarks-truncated", WatermarkEdges::truncated);
        SCENARIOS.put("watermarks-automatic", WatermarkEdges::automatic);
        SCENARIOS.put("foreign", Events::foreign);
        SCENARIOS.put("idle", Events::idle);
        SCENARIOS.put("transactions", Transactions::transactions);
        SCENARIOS.put("transaction-leases", Transactions::leases);
        SCENARIOS.put("many-transactions", Transactions::many);
        SCENARIOS.put("rolling-transactions", Transactions::rolling);
        SCENARIOS.put("rolling-by-hand", Rolling::byHand);
        SCENARIOS.put("rolling-by-rate", Rolling::byRate);
        SCENARIOS.put("groups", Groups::groups);
        SCENARIOS.put("checkpoints", Groups::checkpoints);
        SCENARIOS.put("cuts", Groups::cuts);
        SCENARIOS.put("readers-leave", Groups::readersLeave);
        SCENARIOS.put("batch", Batches::batch);
        SCENARIOS.put("bytes", Bytes::bytes);
        SCENARIOS.put("revisions", Synchronizers::revisions);
        SCENARIOS.put("synchronizer", Synchronizers::synchronizer);
        SCENARIOS.put("shared-bytes", Bytes::shared);
        SCENARIOS.put("shared-tables", Tables::shared);
        SCENARIOS.put("tables", Tables::tables);
        SCENARIOS.put("table-iterators", Tables::iterators);
        SCENARIOS.put("scaling", Scaling::scaling);
        SCENARIOS.put("crowd", Crowd::crowd);
        SCENARIOS.put("scaling-calls", Scaling::calls);
        SCENARIOS.put("subscribers", Retention::subscribers);
        SCENARIOS.put("automatic-release", Retention::automatic);
        SCENARIOS.put("manual-release", Retention::manual);
        SCENARIOS.put("policies", Retention::policies);
        SCENARIOS.put("remade", Edges::remade);
        SCENARIOS.put("sealed-transaction", Edges::sealedTransaction);
        SCENARIOS.put("truncated-to-tail", Edges::truncatedToTail);
        SCENARIOS.put("event-batches", Edges::batches);
        SCENARIOS.put("many-writers", Edges::manyWriters);
        SCENARIOS.put("many-readers", Edges::manyReaders);
        SCENARIOS.put("secured-refused", Secured::refused);
        SCENARIOS.put("secured-renewed", Secured::renewed);
        SCENARIOS.put("secured-rested", Secured::rested);
        SCENARIOS.put("restart", Restart::restart);
        SCENARIOS.put("restart-state", Restart::state);
    }

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var json = new GsonBuilder().serializeNulls().create();
        String name;
        while ((name = in.readLine()) != null) {
            Map<String, Object> seen = new LinkedHashMap<>();
            Map<String, Object> line = new LinkedHashMap<>();
            try (Session session = new Session(arguments[0], name, step -> {
                out.println(json.toJson(step));
                return in.readLine();
            })) {
                SCENARIOS.get(name).run(session, seen);
                line.put("seen", seen);
            } catch (Throwable error) {
                StringWriter text = new StringWriter();
                error.printStackTrace(new PrintWriter(text));
                line.put("error", text.toString());
                line.put("before", seen);
            }
            out.println(json.toJson(line));
        }
        System.exit(0);
    }
}
