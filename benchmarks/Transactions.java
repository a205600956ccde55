import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One producer, one record to each partition in a transaction: begin, send, commit, again.
 *
 * <p>Arguments: BOOTSTRAP TOPIC PARTITIONS ROUNDS. As many rounds go before, unmeasured. Prints the
 * nanoseconds of each, in ascending order, one to a line, and those of all of them together last.
 *
 * <p>Once in some hundred thousand transactions this client asks for the end before it sends the
 * data (docs/clients.md), which every broker refuses: that round is repeated with a new producer.
 */
public class Transactions {
    public static void main(String[] arguments) {
        int partitions = Integer.parseInt(arguments[2]);
        int rounds = Integer.parseInt(arguments[3]);
        byte[] value = new byte[100];
        long[] took = new long[rounds];
        KafkaProducer<byte[], byte[]> producer = begun(arguments[0]);
        for (int round = -rounds; round < rounds; round++) {
            long beganAt = System.nanoTime();
            try {
                producer.beginTransaction();
                for (int partition = 0; partition < partitions; partition++) {
                    producer.send(new ProducerRecord<>(arguments[1], partition, null, value));
                }
                producer.commitTransaction();
            } catch (InvalidTxnStateException refused) {
                producer.close();
                producer = begun(arguments[0]);
                round--;
                continue;
            }
            if (round >= 0) {
                took[round] = System.nanoTime() - beganAt;
            }
        }
        producer.close();
        long total = Arrays.stream(took).sum();
        Arrays.sort(took);
        Arrays.stream(took).forEach(System.out::println);
        System.out.println(total);
    }

    private static KafkaProducer<byte[], byte[]> begun(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", "java-transactions");
        properties.put("key.serializer", ByteArraySerializer.class.getName());
        properties.put("value.serializer", ByteArraySerializer.class.getName());
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
        producer.initTransactions();
        return producer;
    }
}
