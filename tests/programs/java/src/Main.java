import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * The checks with the official Java client: `java Main --url … --prefix … --type Shared`.
 *
 * Prints a JSON line for the client's version, then one for each check, as tests/programs/README.md says.
 */
public final class Main {
    private static final int AT_ONCE = 6;

    /** Raises what it wants, or returns what the same check has to see at the broker and through the bridge. */
    private interface Check {
        String run(Scene scene) throws Exception;
    }

    private static final Map<String, Check> CHECKS = new LinkedHashMap<>();

    static {
        CHECKS.put("immediate", Delivery::immediate);
        CHECKS.put("delayed", Delivery::delayed);
        CHECKS.put("never early", Delivery::neverEarly);
        CHECKS.put("delayed backlog", Delivery::delayedBacklog);
        CHECKS.put("batches", Delivery::batches);
        CHECKS.put("spread", Delivery::spread);
        CHECKS.put("negative ack", Delivery::negativeAck);
        CHECKS.put("ack timeout", Delivery::ackTimeout);
        CHECKS.put("zero queue", Delivery::zeroQueue);
        CHECKS.put("batch receive", Delivery::batchReceive);
        CHECKS.put("dead letter", Delivery::deadLetter);
        CHECKS.put("retry letter", Delivery::retryLetter);
        CHECKS.put("left without acks", Delivery::leftWithoutAcks);
        CHECKS.put("order by key", Delivery::orderByKey);
        CHECKS.put("close under load", Delivery::closeUnderLoad);
        CHECKS.put("ack receipt", Delivery::ackReceipt);
        CHECKS.put("seek earliest", Life::seekEarliest);
        CHECKS.put("seek time", Life::seekTime);
        CHECKS.put("seek id", Life::seekId);
        CHECKS.put("seek over delayed", Life::seekOverDelayed);
        CHECKS.put("unsubscribe", Life::unsubscribe);
        CHECKS.put("initial position", Life::initialPosition);
        CHECKS.put("partitioned", Life::partitioned);
        CHECKS.put("several topics", Life::severalTopics);
        CHECKS.put("pattern", Life::pattern);
        CHECKS.put("reader", Life::reader);
        CHECKS.put("schema", Content::schema);
        CHECKS.put("metadata", Content::metadata);
        CHECKS.put("byte keys", Content::byteKeys);
        CHECKS.put("empty", Content::empty);
        CHECKS.put("compression", Content::compression);
        CHECKS.put("chunks", Content::chunks);
        CHECKS.put("batch index acks", Content::batchIndexAcks);
    }

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int index = 0; index < arguments.length; index += 2) {
            given.put(arguments[index], arguments[index + 1]);
        }
        boolean keyed = given.get("--type").equals("Key_Shared");
        List<String> only = given.containsKey("--checks") ? Arrays.asList(given.get("--checks").split(",")) : List.of();
        System.out.println("{\"client\": " + quoted("Java " + System.getProperty("client.version")) + "}");
        try (PulsarClient client = connect(given)) {
            ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
            for (String name : CHECKS.keySet()) {
                if ((keyed || !name.equals("order by key")) && (only.isEmpty() || only.contains(name))) {
                    String topic = given.get("--prefix") + "-" + name.replace(' ', '-');
                    pool.submit(() -> System.out.println(run(new Scene(client, topic, keyed), name)));
                }
            }
            pool.shutdown();
            pool.awaitTermination(10, TimeUnit.MINUTES);
        }
    }

    private static PulsarClient connect(Map<String, String> given) throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(given.get("--url"));
        if (given.containsKey("--ca")) {
            builder.tlsTrustCertsFilePath(given.get("--ca")).enableTlsHostnameVerification(true);
        }
        if (given.containsKey("--token")) {
            builder.authentication(AuthenticationFactory.token(given.get("--token")));
        }
        return builder.build();
    }

    /** The line of one check. */
    private static String run(Scene scene, String name) {
        String line = "{\"check\": " + quoted(name) + ", \"ok\": ";
        try (scene) {
            return line + "true, \"seen\": " + quoted(CHECKS.get(name).run(scene)) + "}";
        } catch (Throwable error) {
            return line + "false, \"reason\": " + quoted(error.toString()) + "}";
        }
    }

    private static String quoted(String text) {
        String escaped = text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ");
        return "\"" + escaped + "\"";
    }
}
