import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.BacklogQuota.BacklogQuotaType;
import org.apache.pulsar.common.policies.data.RetentionPolicies;

/**
 * Runs Pulsar's own admin command line, and calls its Java admin client, many times in one process.
 *
 * <p>A request is one line: words apart by tabs, the first being "cli" (the rest is the command line) or "java" (the rest
 * is a call below). The answer is one line: exit code, standard output and standard error, the latter two in base64.
 */
public final class AdminHost {
    private static final PrintStream ANSWERS = System.out;

    private interface Work {
        int run() throws Exception;
    }

    /** The command line as a part of this process: it answers, and does not exit. */
    private static final class CommandLine extends PulsarAdminTool {
        CommandLine(Properties properties) throws Exception {
            super(properties);
        }

        int perform(String[] words) {
            return run(words) ? 0 : 1;
        }
    }

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put("webServiceUrl", args[0]);
        properties.put("brokerServiceUrl", "pulsar://127.0.0.1:1/");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[0]).build()) {
            for (String line = requests.readLine(); line != null; line = requests.readLine()) {
                String[] words = line.split("\t", -1);
                String[] rest = java.util.Arrays.copyOfRange(words, 1, words.length);
                if (words[0].equals("cli")) {
                    answer(() -> new CommandLine(properties).perform(rest));
                } else {
                    answer(() -> call(admin, rest));
                }
            }
        }
        System.exit(0);
    }

    private static void answer(Work work) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream oldErr = System.err;
        int code;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try {
            code = work.run();
        } catch (PulsarAdminException refused) {
            System.err.print(refused.getStatusCode() + " " + refused.getClass().getSimpleName() + " " + refused.getMessage());
            code = 1;
        } catch (Exception error) {
            System.err.print(error);
            code = 2;
        } finally {
            System.setOut(ANSWERS);
            System.setErr(oldErr);
        }
        Base64.Encoder text = Base64.getEncoder();
        ANSWERS.println(code + " " + text.encodeToString(out.toByteArray()) + "," + text.encodeToString(err.toByteArray()));
        ANSWERS.flush();
    }

    /** The calls that the manual writes in Java, with their arguments. */
    private static int call(PulsarAdmin admin, String[] words) throws Exception {
        String namespace = words[1];
        switch (words[0]) {
            case "setRetention" -> {
                int retentionTime = Integer.parseInt(words[2]);
                int retentionSize = Integer.parseInt(words[3]);
                RetentionPolicies policies = new RetentionPolicies(retentionTime, retentionSize);
                admin.namespaces().setRetention(namespace, policies);
            }
            case "getRetention" -> System.out.print(admin.namespaces().getRetention(namespace));
            case "setBacklogQuota" ->
                admin.namespaces().setBacklogQuota(namespace, BacklogQuota.builder()
                        .retentionPolicy(BacklogQuota.RetentionPolicy.producer_request_hold)
                        .limitSize(2147483648L)
                        .limitTime(60 * 60)
                        .build());
            case "getBacklogQuotas" -> {
                var quotas = admin.namespaces().getBacklogQuotaMap(namespace);
                for (BacklogQuotaType type : quotas.keySet()) {
                    BacklogQuota quota = quotas.get(type);
                    System.out.print(type + " " + quota.getLimitSize() + " " + quota.getLimitTime() + " " + quota.getPolicy());
                }
            }
            case "removeBacklogQuota" -> admin.namespaces().removeBacklogQuota(namespace);
            case "setNamespaceMessageTTL" ->
                admin.namespaces().setNamespaceMessageTTL(namespace, Integer.parseInt(words[2]));
            case "getNamespaceMessageTTL" -> System.out.print(admin.namespaces().getNamespaceMessageTTL(namespace));
            case "removeNamespaceMessageTTL" -> admin.namespaces().removeNamespaceMessageTTL(namespace);
            case "stats" -> {
                var stats = admin.topics().getStats(namespace);
                System.out.print(stats.getStorageSize() + " " + stats.getBacklogSize());
                stats.getSubscriptions().forEach((name, own) -> System.out.print(" " + name + "=" + own.getMsgBacklog()));
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return 0;
    }
}
