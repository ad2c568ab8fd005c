import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** Checks of subscriptions: positions, seeks, ends, and what they are made of several topics. */
final class Life {
    private Life() {}

    static String seekEarliest(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("m", 10));
        Scene.drain(consumer, 10);
        consumer.seek(MessageId.earliest);
        Scene.sameTexts(Scene.drain(consumer, 10), Scene.numbered("m", 10), "again");
        Scene.expectQuiet(consumer);
        return "";
    }

    static String seekTime(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("before", 5));
        Thread.sleep(100);
        long betweenMs = System.currentTimeMillis();
        Thread.sleep(100);
        scene.send(Scene.numbered("after", 5));
        Scene.drain(consumer, 10);
        consumer.seek(betweenMs);
        Scene.sameTexts(Scene.drain(consumer, 5), Scene.numbered("after", 5), "again");
        Scene.expectQuiet(consumer);
        return "";
    }

    /** Whether the message that is sought comes itself is for the broker to say. */
    static String seekId(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("m", 10));
        MessageId sought = null;
        for (Scene.Received each : Scene.drain(consumer, 10)) {
            sought = each.text().equals("m-5") ? each.message().getMessageId() : sought;
        }
        consumer.seek(sought);
        List<Scene.Received> again = new ArrayList<>(Scene.drain(consumer, 4));
        again.addAll(Scene.drainAll(consumer, Scene.QUIET_MS));
        return String.join(" ", Scene.texts(again));
    }

    /** Back to the start while some are delayed: these come once, at their time. */
    static String seekOverDelayed(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("now", 5));
        long dueMs = System.currentTimeMillis() + 4000;
        scene.send(scene.topic, Scene.numbered("later", 5), 4000);
        Scene.drain(consumer, 5);
        consumer.seek(MessageId.earliest);
        List<Scene.Received> all = Scene.drain(consumer, 10);
        Scene.sameTexts(all.subList(0, 5), Scene.numbered("now", 5), "again");
        Scene.sameTexts(all.subList(5, 10), Scene.numbered("later", 5), "later");
        Scene.same(all.get(5).atMs() >= dueMs - 1000, true, "in time");
        Scene.expectQuiet(consumer);
        return "";
    }

    static String unsubscribe(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("m", 10));
        scene.send(scene.topic, Scene.numbered("later", 3), 2000);
        Scene.drain(consumer, 10);
        consumer.unsubscribe();
        consumer = scene.subscribe();
        List<String> wanted = Scene.together(Scene.numbered("m", 10), Scene.numbered("later", 3));
        Scene.sameTexts(Scene.drain(consumer, 13), wanted, "again");
        Scene.expectQuiet(consumer);
        return "";
    }

    static String initialPosition(Scene scene) throws Exception {
        scene.send(Scene.numbered("old", 5));
        Consumer<byte[]> early = scene.opened(scene.consumer().topic(scene.topic).subscriptionName("early").subscribe());
        Consumer<byte[]> late = scene.opened(scene.consumer()
                .topic(scene.topic)
                .subscriptionName("late")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Latest)
                .subscribe());
        scene.send(Scene.numbered("new", 5));
        List<String> both = Scene.together(Scene.numbered("old", 5), Scene.numbered("new", 5));
        Scene.sameTexts(Scene.drain(early, 10), both, "from earliest");
        Scene.sameTexts(Scene.drain(late, 5), Scene.numbered("new", 5), "from latest");
        Scene.expectQuiet(early, late);
        return "";
    }

    /** Whoever runs this has made the topic, with three partitions. */
    static String partitioned(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        scene.send(Scene.numbered("now", 30));
        scene.send(scene.topic, Scene.numbered("later", 30), 1000);
        List<Scene.Received> all = Scene.drain(consumer, 60);
        Scene.sameTexts(all, Scene.together(Scene.numbered("now", 30), Scene.numbered("later", 30)), "received");
        Scene.expectQuiet(consumer);
        TreeSet<String> seen = new TreeSet<>();
        all.forEach(each -> seen.add(each.message().getTopicName().substring(scene.topic.length())));
        return String.join(" ", seen);
    }

    private static String twoTopics(Scene scene, ConsumerBuilder<byte[]> both) throws Exception {
        String first = scene.topic + "-a";
        String second = scene.topic + "-b";
        scene.send(first, List.of("a-before"), 0);
        scene.send(second, List.of("b-before"), 0);
        Consumer<byte[]> consumer = scene.opened(both.subscribe());
        scene.send(first, List.of("a-later"), 1000);
        scene.send(second, List.of("b-after"), 0);
        List<String> wanted = List.of("a-before", "b-before", "a-later", "b-after");
        Scene.sameTexts(Scene.drain(consumer, 4), wanted, "received");
        Scene.expectQuiet(consumer);
        return "";
    }

    static String severalTopics(Scene scene) throws Exception {
        return twoTopics(scene, scene.consumer().topic(scene.topic + "-a", scene.topic + "-b"));
    }

    static String pattern(Scene scene) throws Exception {
        return twoTopics(scene, scene.consumer().topicsPattern(Pattern.compile(scene.topic + "-.*")));
    }

    /** Beside a subscription that the bridge dispatches. */
    static String reader(Scene scene) throws Exception {
        Consumer<byte[]> consumer = scene.subscribe();
        MessageId last = null;
        try (Producer<byte[]> producer = scene.producer().create()) {
            for (String text : Scene.numbered("m", 10)) {
                last = producer.newMessage().key(text).value(text.getBytes()).send();
            }
        }
        Reader<byte[]> reader =
                scene.opened(scene.client.newReader().topic(scene.topic).startMessageId(MessageId.earliest).create());
        List<String> read = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            read.add(new String(reader.readNext().getData()));
        }
        Scene.same(read, Scene.numbered("m", 10), "read");
        Scene.same(consumer.getLastMessageIds().get(0).compareTo(last), 0, "last message id");
        return "";
    }
}
