import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;

/** Checks of what is delivered, when, to whom, and how often. */
final class Delivery {
    /** How much too early the broker's own tracker may be. */
    private static final long TICK_MS = 1000;

    private Delivery() {}

    static String immediate(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("now", 20));
        Scene.sameTexts(Scene.drain(consumer, 20), Scene.numbered("now", 20), "received");
        Scene.expectQuiet(consumer);
        return "";
    }

    static String delayed(Scene scene) throws Exception {
        return deliverLater(scene, TICK_MS);
    }

    static String neverEarly(Scene scene) throws Exception {
        return deliverLater(scene, 0);
    }

    /** Each once, the immediate ones first, and none of the others more than `earlyMs` before its time. */
    private static String deliverLater(Scene scene, long earlyMs) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        Producer<byte[]> producer = scene.opened(scene.producer().create());
        Map<String, Long> dueMs = new HashMap<>();
        for (String text : Scene.numbered("after", 5)) {
            dueMs.put(text, System.currentTimeMillis() + 4000);
            producer.newMessage().key(text).value(text.getBytes()).deliverAfter(4000, TimeUnit.MILLISECONDS).send();
        }
        long atMs = System.currentTimeMillis() + 5000;
        for (String text : Scene.numbered("at", 5)) {
            dueMs.put(text, atMs);
            producer.newMessage().key(text).value(text.getBytes()).deliverAt(atMs).send();
        }
        scene.send(Scene.numbered("now", 5));
        List<Scene.Received> all = Scene.drain(consumer, 15);
        Scene.sameTexts(all.subList(0, 5), Scene.numbered("now", 5), "first");
        Scene.sameTexts(all.subList(5, 15), new ArrayList<>(dueMs.keySet()), "later");
        for (Scene.Received each : all.subList(5, 15)) {
            long earlier = dueMs.get(each.text()) - each.atMs();
            if (earlier > earlyMs) {
                throw new Scene.Failed(each.text() + " before its time, by " + earlier + " ms");
            }
        }
        Scene.expectQuiet(consumer);
        return "";
    }

    /** A consumer that comes when all is due already. */
    static String delayedBacklog(Scene scene) throws Exception {
        scene.subscribe().close();
        scene.send(scene.topic, Scene.numbered("later", 20), 300);
        scene.send(Scene.numbered("now", 20));
        Thread.sleep(400);
        Consumer<byte[]> consumer = scene.subscribe();
        List<String> wanted = Scene.together(Scene.numbered("later", 20), Scene.numbered("now", 20));
        Scene.sameTexts(Scene.drain(consumer, 40), wanted, "received");
        Scene.expectQuiet(consumer);
        return "";
    }

    static String batches(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        List<String> wanted = new ArrayList<>();
        Producer<byte[]> producer = scene.opened(scene.batchingProducer().create());
        for (int batch = 0; batch < 3; batch++) {
            for (int number = 0; number < 10; number++) {
                String text = batch + "-" + number;
                wanted.add(text);
                producer.newMessage().key("key-" + batch).value(text.getBytes()).sendAsync();
            }
            producer.flush();
        }
        List<Scene.Received> all = Scene.drain(consumer, 30);
        Scene.sameTexts(all, wanted, "received");
        Set<String> entries = new HashSet<>();
        for (Scene.Received each : all) {
            MessageIdAdv id = (MessageIdAdv) each.message().getMessageId();
            entries.add(id.getLedgerId() + ":" + id.getEntryId());
        }
        consumer.close();
        Scene.expectQuiet(scene.subscribe());
        return entries.size() + " entries";
    }

    /** Takes turns until `count` have come; who had which. */
    private static List<List<Scene.Received>> share(List<Consumer<byte[]>> consumers, int count) throws Exception {
        List<List<Scene.Received>> all = new ArrayList<>();
        consumers.forEach(each -> all.add(new ArrayList<>()));
        for (int sum = 0, before = -1; sum < count; ) {
            if (before == sum) {
                throw new Scene.Failed("no more after " + sum);
            }
            before = sum;
            for (int index = 0; index < consumers.size(); index++) {
                List<Scene.Received> more = Scene.drainAll(consumers.get(index), 100);
                all.get(index).addAll(more);
                sum += more.size();
            }
        }
        return all;
    }

    private static List<Consumer<byte[]>> three(Scene scene, int queue) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int index = 0; index < 3; index++) {
            consumers.add(scene.opened(scene.consumer().topic(scene.topic).receiverQueueSize(queue).subscribe()));
        }
        return consumers;
    }

    /** Several consumers: each message to one of them, and each of them has some. */
    static String spread(Scene scene) throws Exception {
        List<Consumer<byte[]>> consumers = three(scene, 5);
        scene.send(Scene.numbered("m", 90));
        List<Scene.Received> all = new ArrayList<>();
        for (List<Scene.Received> mine : share(consumers, 90)) {
            Scene.same(mine.isEmpty(), false, "had none");
            all.addAll(mine);
        }
        Scene.sameTexts(all, Scene.numbered("m", 90), "received");
        return "";
    }

    /** Refused twice: immediate messages and delayed ones. */
    static String negativeAck(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("now", 2));
        scene.send(scene.topic, Scene.numbered("later", 2), 1000);
        List<Scene.Received> all = new ArrayList<>();
        while (all.size() < 4 * 3) {
            Scene.Received one = Scene.drainUnacked(consumer, 1).get(0);
            all.add(one);
            if (one.count() == 2) {
                consumer.acknowledge(one.message());
            } else {
                consumer.negativeAcknowledge(one.message());
            }
        }
        Scene.expectQuiet(consumer);
        return Scene.counts(all);
    }

    static String ackTimeout(Scene scene) throws Exception {
        Consumer<byte[]> consumer =
                scene.opened(scene.consumer().topic(scene.topic).ackTimeout(1500, TimeUnit.MILLISECONDS).subscribe());
        scene.send(List.of("forgotten"));
        List<Scene.Received> all = new ArrayList<>(Scene.drainUnacked(consumer, 2));
        all.addAll(Scene.drain(consumer, 1));
        Scene.expectQuiet(consumer);
        return Scene.counts(all);
    }

    /** One message at a time: asked for when the one before is done. */
    static String zeroQueue(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.opened(scene.consumer().topic(scene.topic).receiverQueueSize(0).subscribe());
        scene.send(Scene.numbered("now", 3));
        scene.send(scene.topic, Scene.numbered("later", 3), 1000);
        List<String> found = new ArrayList<>();
        while (found.size() < 6) {
            Message<byte[]> message = consumer.receive(); // this client allows no time limit here
            consumer.acknowledge(message);
            found.add(new String(message.getData()));
        }
        List<String> wanted = Scene.together(Scene.numbered("now", 3), Scene.numbered("later", 3));
        Scene.same(new HashSet<>(found), new HashSet<>(wanted), "received");
        return "";
    }

    static String batchReceive(Scene scene) throws Exception {
        BatchReceivePolicy ten = BatchReceivePolicy.builder().maxNumMessages(10).timeout(20, TimeUnit.SECONDS).build();
        Consumer<byte[]> consumer = scene.opened(scene.consumer().topic(scene.topic).batchReceivePolicy(ten).subscribe());
        scene.send(Scene.numbered("now", 10));
        scene.send(scene.topic, Scene.numbered("later", 10), 1000);
        List<String> found = new ArrayList<>();
        while (found.size() < 20) {
            var messages = consumer.batchReceive();
            messages.forEach(each -> found.add(new String(each.getData())));
            consumer.acknowledge(messages);
        }
        Scene.same(
                new HashSet<>(found),
                new HashSet<>(Scene.together(Scene.numbered("now", 10), Scene.numbered("later", 10))), "received");
        Scene.expectQuiet(consumer);
        return found.size() + "";
    }

    static String deadLetter(Scene scene) throws Exception {
        Consumer<byte[]> dead = undertaker(scene);
        Consumer<byte[]> consumer = scene.opened(scene.consumer()
                .topic(scene.topic)
                .deadLetterPolicy(DeadLetterPolicy.builder()
                        .maxRedeliverCount(2)
                        .deadLetterTopic(scene.topic + "-dead")
                        .initialSubscriptionName("kept")
                        .build())
                .subscribe());
        scene.send(List.of("good-0", "good-1", "bad-0"));
        scene.send(scene.topic, List.of("good-2", "bad-1"), 1000);
        List<Scene.Received> all = new ArrayList<>();
        while (all.size() < 3 + 2 * 3) {
            Scene.Received one = Scene.drainUnacked(consumer, 1).get(0);
            all.add(one);
            if (one.text().startsWith("bad")) {
                consumer.negativeAcknowledge(one.message());
            } else {
                consumer.acknowledge(one.message());
            }
        }
        Scene.sameTexts(Scene.drain(dead, 2), List.of("bad-0", "bad-1"), "dead");
        Scene.expectQuiet(consumer, dead);
        return Scene.counts(all);
    }

    private static Consumer<byte[]> undertaker(Scene scene) throws Exception {
        return scene.opened(scene.consumer().topic(scene.topic + "-dead").subscriptionName("undertaker").subscribe());
    }

    /** Two more tries by the retry topic, each after a second, then the dead-letter topic. */
    static String retryLetter(Scene scene) throws Exception {
        Consumer<byte[]> dead = undertaker(scene);
        Consumer<byte[]> consumer = scene.opened(scene.consumer()
                .topic(scene.topic)
                .enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder()
                        .maxRedeliverCount(2)
                        .deadLetterTopic(scene.topic + "-dead")
                        .retryLetterTopic(scene.topic + "-retry")
                        .build())
                .subscribe());
        scene.send(List.of("bad"));
        List<String> seen = new ArrayList<>();
        for (int tries = 0; tries < 3; tries++) {
            Scene.Received one = Scene.drainUnacked(consumer, 1).get(0);
            String counted = one.message().getProperties().get("RECONSUMETIMES");
            seen.add(one.message().getTopicName().substring(scene.topic.length()) + "/" + counted);
            consumer.reconsumeLater(one.message(), 1, TimeUnit.SECONDS);
        }
        Scene.sameTexts(Scene.drain(dead, 1), List.of("bad"), "dead");
        Scene.expectQuiet(consumer, dead);
        return String.join(" ", seen);
    }

    /** What a consumer had and did not ack goes to the next one. */
    static String leftWithoutAcks(Scene scene) throws Exception {
        Consumer<byte[]> first = scene.opened(scene.consumer().topic(scene.topic).consumerName("first").subscribe());
        scene.send(Scene.numbered("m", 10));
        Scene.drainUnacked(first, 10);
        Consumer<byte[]> second = scene.opened(scene.consumer().topic(scene.topic).consumerName("second").subscribe());
        first.close();
        List<Scene.Received> all = Scene.drain(second, 10);
        Scene.expectQuiet(second);
        return Scene.counts(all);
    }

    /** Key_Shared: each key's messages in their order, all at one consumer. */
    static String orderByKey(Scene scene) throws Exception {
        List<Consumer<byte[]>> consumers = three(scene, 10);
        Producer<byte[]> producer = scene.opened(scene.producer().create());
        for (int number = 0; number < 200; number++) {
            producer.newMessage().key("key-" + number % 20).value(String.valueOf(number).getBytes()).sendAsync();
        }
        producer.flush();
        Map<String, Integer> last = new HashMap<>();
        Map<String, Integer> at = new HashMap<>();
        List<List<Scene.Received>> all = share(consumers, 200);
        for (int index = 0; index < 3; index++) {
            for (Scene.Received each : all.get(index)) {
                String key = each.message().getKey();
                int number = Integer.parseInt(each.text());
                Scene.same(at.getOrDefault(key, index), index, "consumer of " + key);
                Scene.same(last.getOrDefault(key, -1) < number, true, "order of " + key);
                at.put(key, index);
                last.put(key, number);
            }
        }
        return "";
    }

    /** A consumer leaves while messages flow: all are received by one or the other. */
    static String closeUnderLoad(Scene scene) throws Exception {
        List<Consumer<byte[]>> consumers = three(scene, 20);
        consumers.get(2).close();
        Producer<byte[]> producer = scene.opened(scene.producer().create());
        for (String text : Scene.numbered("m", 400)) {
            producer.newMessage().key(text).value(text.getBytes()).sendAsync();
        }
        List<Scene.Received> all = new ArrayList<>(Scene.drain(consumers.get(0), 50));
        consumers.get(0).close();
        producer.flush();
        all.addAll(Scene.drainAll(consumers.get(1), 3000));
        Scene.same(new HashSet<>(Scene.texts(all)).size(), 400, "received by both");
        return "";
    }

    static String ackReceipt(Scene scene) throws Exception {
        Consumer<byte[]> consumer =
                scene.opened(scene.consumer().topic(scene.topic).isAckReceiptEnabled(true).subscribe());
        scene.send(Scene.numbered("now", 10));
        scene.send(scene.topic, Scene.numbered("later", 10), 1000);
        Scene.drain(consumer, 20);
        consumer.close();
        Scene.expectQuiet(scene.subscribe());
        return "";
    }
}
