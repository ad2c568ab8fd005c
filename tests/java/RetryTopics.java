import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** Sends messages of a topic through its retry topic to its dead-letter topic, whose names the client chooses. */
public class RetryTopics {
    /** Arguments: service URL, topic, subscription, number of messages. */
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[3]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Consumer<byte[]> consumer = client.newConsumer()
                        .topic(arguments[1])
                        .subscriptionName(arguments[2])
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .enableRetry(true)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build())
                        .subscribe()) {
            for (int received = 0; received < 2 * count; received++) {
                Message<byte[]> message = consumer.receive(20, TimeUnit.SECONDS);
                System.out.println("received " + message.getTopicName());
                consumer.reconsumeLater(message, 1, TimeUnit.MILLISECONDS);
            }
        }
    }
}
