import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Moves messages from one topic to another in transactions, of which the odd ones are given up. */
public class Transactions {
    /** Arguments: service URL, topic to take from, topic to send to, number of messages. */
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[3]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
                Producer<byte[]> first = client.newProducer().topic(arguments[1]).create();
                Producer<byte[]> producer =
                        client.newProducer().topic(arguments[2]).sendTimeout(0, TimeUnit.SECONDS).create();
                Consumer<byte[]> source = consumer(client, arguments[1]);
                Consumer<byte[]> target = consumer(client, arguments[2])) {
            for (int number = 0; number < count; number++) {
                first.send(Integer.toString(number).getBytes());
            }
            List<Transaction> open = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                Transaction transaction = client.newTransaction()
                        .withTransactionTimeout(1, TimeUnit.MINUTES)
                        .build()
                        .get(20, TimeUnit.SECONDS);
                System.out.println("coordinator " + transaction.getTxnID().getMostSigBits());
                Message<byte[]> message = source.receive(20, TimeUnit.SECONDS);
                producer.newMessage(transaction).value(message.getValue()).send();
                source.acknowledgeAsync(message.getMessageId(), transaction).get(20, TimeUnit.SECONDS);
                open.add(transaction);
            }
            System.out.println("early " + (target.receive(500, TimeUnit.MILLISECONDS) != null));
            for (int number = 0; number < count; number++) {
                Transaction transaction = open.get(number);
                (number % 2 == 0 ? transaction.commit() : transaction.abort()).get(20, TimeUnit.SECONDS);
            }
            for (Message<byte[]> message = target.receive(10, TimeUnit.SECONDS);
                    message != null;
                    message = target.receive(1, TimeUnit.SECONDS)) {
                System.out.println("received " + new String(message.getValue()));
                target.acknowledge(message);
            }
        }
    }

    private static Consumer<byte[]> consumer(PulsarClient client, String topic) throws Exception {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }
}
