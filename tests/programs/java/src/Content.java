import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;

/** Checks of what is in messages, and how it travels. */
final class Content {
    /** What is sent with a schema. */
    public static final class Order {
        public String item;
        public int count;
    }

    private Content() {}

    static String schema(Scene scene) throws Exception {
        Schema<Order> kind = Schema.JSON(Order.class);
        Consumer<Order> consumer = scene.opened(scene.consumer(kind).topic(scene.topic).subscribe());
        Order order = new Order();
        order.item = "tea";
        order.count = 3;
        try (Producer<Order> producer = scene.client.newProducer(kind).topic(scene.topic).create()) {
            producer.newMessage().key("k").value(order).send();
        }
        Order found = consumer.receive().getValue();
        Scene.same(found.item + found.count, "tea3", "value");
        return "";
    }

    static String metadata(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        String name = scene.topic.substring(scene.topic.length() - 30) + "-maker";
        Map<String, String> properties = Map.of("one", "1", "two", "zwei");
        scene.opened(scene.producer().producerName(name).create())
                .newMessage()
                .value("x".getBytes())
                .key("key")
                .orderingKey("order".getBytes())
                .properties(properties)
                .eventTime(1_234_567)
                .sequenceId(77)
                .send();
        Message<byte[]> found = Scene.drain(consumer, 1).get(0).message();
        Scene.same(found.getProperties(), properties, "properties");
        List<Object> told = List.of(
                found.getKey(), new String(found.getOrderingKey()), found.getEventTime(), found.getSequenceId(),
                found.getProducerName(), found.getTopicName());
        Scene.same(told, List.of("key", "order", 1_234_567L, 77L, name, scene.topic), "told");
        return "";
    }

    /** Keys that are bytes. */
    static String byteKeys(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        byte[] key = {0, (byte) 200, 7};
        scene.opened(scene.producer().create()).newMessage().keyBytes(key).value("x".getBytes()).send();
        Message<byte[]> found = Scene.drain(consumer, 1).get(0).message();
        Scene.same(found.hasBase64EncodedKey() && Arrays.equals(found.getKeyBytes(), key), true, "key");
        return "";
    }

    static String empty(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        Producer<byte[]> producer = scene.opened(scene.producer().create());
        producer.newMessage().key("k").value(new byte[0]).send();
        Scene.same(Scene.drain(consumer, 1).get(0).text(), "", "payload");
        producer.newMessage().key("k").value(null).send();
        Message<byte[]> none = consumer.receive();
        Scene.same(none.size(), 0, "size of a null value");
        return "null value: " + (none.getValue() == null);
    }

    static String compression(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        for (CompressionType kind : CompressionType.values()) {
            String text = kind.name().repeat(1000);
            Producer<byte[]> producer = scene.opened(scene.producer().compressionType(kind).create());
            producer.newMessage().key("k").value(text.getBytes()).send();
            Scene.same(Scene.drain(consumer, 1).get(0).text(), text, kind.name());
        }
        return "";
    }

    static String chunks(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        byte[] content = new byte[50_000];
        new Random(1).nextBytes(content);
        Producer<byte[]> producer =
                scene.opened(scene.producer().enableChunking(true).chunkMaxMessageSize(10_000).create());
        producer.newMessage().key("k").value(content).send();
        Message<byte[]> found = Scene.drain(consumer, 1).get(0).message();
        Scene.same(Arrays.equals(found.getData(), content), true, "same content");
        Scene.expectQuiet(consumer);
        return "";
    }

    /** Half of a batch is acked, the consumer leaves: whether the rest alone comes again is for the broker to say. */
    static String batchIndexAcks(Scene scene) throws Exception {
        Consumer<byte[]> consumer =
                scene.opened(scene.consumer().topic(scene.topic).enableBatchIndexAcknowledgment(true).subscribe());
        Producer<byte[]> producer = scene.opened(scene.batchingProducer().create());
        for (String text : Scene.numbered("m", 10)) {
            producer.newMessage().key("k").value(text.getBytes()).sendAsync();
        }
        producer.flush();
        for (Scene.Received each : Scene.drainUnacked(consumer, 10)) {
            if (each.text().compareTo("m-5") < 0) {
                consumer.acknowledge(each.message());
            }
        }
        consumer.close();
        consumer = scene.opened(scene.consumer().topic(scene.topic).enableBatchIndexAcknowledgment(true).subscribe());
        List<Scene.Received> again = new ArrayList<>(Scene.drain(consumer, 5));
        again.addAll(Scene.drainAll(consumer, Scene.QUIET_MS));
        return String.join(" ", Scene.texts(again));
    }
}
