import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** What every check has: a client, topics of its own, and ways to send and to receive. */
final class Scene implements AutoCloseable {
    static final long PATIENCE_MS = 30_000;
    /** How long nothing may arrive when nothing should. */
    static final int QUIET_MS = 500;

    /** A check did not find what it has to. */
    @SuppressWarnings("serial")
    static final class Failed extends RuntimeException {
        Failed(String message) {
            super(message.length() > 500 ? message.substring(0, 500) : message);
        }
    }

    /** A message, and when it came. */
    record Received(String text, long atMs, int count, Message<byte[]> message) {}

    final PulsarClient client;
    final String topic;
    final boolean keyed;
    private final List<AutoCloseable> open = new ArrayList<>();

    Scene(PulsarClient client, String topic, boolean keyed) {
        this.client = client;
        this.topic = topic;
        this.keyed = keyed;
    }

    /** Of a consumer from the start of the topic, which asks soon for what it refused. */
    ConsumerBuilder<byte[]> consumer() {
        return consumer(Schema.BYTES);
    }

    <T> ConsumerBuilder<T> consumer(Schema<T> schema) {
        return client.newConsumer(schema)
                .subscriptionName("s")
                .subscriptionType(keyed ? SubscriptionType.Key_Shared : SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .acknowledgmentGroupTime(50, TimeUnit.MILLISECONDS)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS);
    }

    Consumer<byte[]> subscribe() throws Exception {
        return opened(consumer().topic(topic).subscribe());
    }

    ProducerBuilder<byte[]> producer() {
        return client.newProducer().topic(topic).enableBatching(false).blockIfQueueFull(true);
    }

    /** Of batches that are sent when they are flushed, never before. */
    ProducerBuilder<byte[]> batchingProducer() {
        return producer()
                .enableBatching(true)
                .batcherBuilder(keyed ? BatcherBuilder.KEY_BASED : BatcherBuilder.DEFAULT)
                .batchingMaxPublishDelay(60, TimeUnit.SECONDS);
    }

    <T extends AutoCloseable> T opened(T each) {
        open.add(each);
        return each;
    }

    void send(List<String> texts) throws Exception {
        send(topic, texts, 0);
    }

    /** Each with its text as its key, all stored when this returns. */
    void send(String topic, List<String> texts, long afterMs) throws Exception {
        try (Producer<byte[]> producer = producer().topic(topic).create()) {
            for (String text : texts) {
                var message = producer.newMessage().key(text).value(text.getBytes());
                (afterMs > 0 ? message.deliverAfter(afterMs, TimeUnit.MILLISECONDS) : message).send();
            }
        }
    }

    @Override
    public void close() {
        for (AutoCloseable each : open) {
            try {
                each.close();
            } catch (Exception alreadyClosed) {
                // By the check itself.
            }
        }
    }

    static List<String> numbered(String word, int count) {
        return IntStream.range(0, count).mapToObj(number -> word + "-" + number).collect(Collectors.toList());
    }

    @SafeVarargs
    static List<String> together(List<String>... lists) {
        List<String> all = new ArrayList<>();
        for (List<String> each : lists) {
            all.addAll(each);
        }
        return all;
    }

    /** The next message, or null. */
    static Received receive(Consumer<byte[]> consumer, long withinMs) throws Exception {
        Message<byte[]> message = consumer.receive((int) withinMs, TimeUnit.MILLISECONDS);
        return message == null
                ? null
                : new Received(new String(message.getData()), System.currentTimeMillis(), message.getRedeliveryCount(), message);
    }

    static List<Received> drainUnacked(Consumer<byte[]> consumer, int count) throws Exception {
        List<Received> found = new ArrayList<>();
        while (found.size() < count) {
            Received one = receive(consumer, PATIENCE_MS);
            if (one == null) {
                throw new Failed(found.size() + " of " + count + " came: " + texts(found));
            }
            found.add(one);
        }
        return found;
    }

    static List<Received> drain(Consumer<byte[]> consumer, int count) throws Exception {
        List<Received> found = new ArrayList<>();
        while (found.size() < count) {
            Received one = drainUnacked(consumer, 1).get(0);
            consumer.acknowledge(one.message());
            found.add(one);
        }
        return found;
    }

    /** Whatever comes until nothing comes for a while. */
    static List<Received> drainAll(Consumer<byte[]> consumer, long quietMs) throws Exception {
        List<Received> found = new ArrayList<>();
        for (Received one = receive(consumer, quietMs); one != null; one = receive(consumer, quietMs)) {
            consumer.acknowledge(one.message());
            found.add(one);
        }
        return found;
    }

    @SafeVarargs
    static void expectQuiet(Consumer<byte[]>... consumers) throws Exception {
        for (Consumer<byte[]> each : consumers) {
            same(texts(drainAll(each, QUIET_MS)), List.of(), "messages after the last");
        }
    }

    static void same(Object found, Object wanted, String what) {
        if (!found.equals(wanted)) {
            throw new Failed(what + ": " + found + ", not " + wanted);
        }
    }

    static List<String> texts(List<Received> all) {
        return all.stream().map(Received::text).sorted().collect(Collectors.toList());
    }

    /** The same messages, each once, in any order. */
    static void sameTexts(List<Received> all, List<String> wanted, String what) {
        same(texts(all), wanted.stream().sorted().collect(Collectors.toList()), what);
    }

    /** Redelivery counts of each message, in the order in which they came. */
    static String counts(List<Received> all) {
        Map<String, String> found = new TreeMap<>();
        for (Received each : all) {
            found.merge(each.text(), String.valueOf(each.count()), (before, last) -> before + "/" + last);
        }
        return found.entrySet().stream().map(each -> each.getKey() + ":" + each.getValue()).collect(Collectors.joining(" "));
    }
}
