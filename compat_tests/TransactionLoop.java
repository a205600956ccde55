import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own producer and consumer in transactions, for the tests of transaction version 2.
 *
 * <p>Arguments: MODE BOOTSTRAP SOURCE SINK TRANSACTIONAL_ID COUNT. Prints what a read_committed
 * consumer finds in SINK, in one line.
 *
 * <p>pipeline: COUNT records into SOURCE, ten to a transaction, every third of which is aborted
 * first; then consume-process-produce of all of them into SINK with their offsets, likewise.
 * timeout: a transaction outlives its timeout, is aborted by its own producer, which goes on.
 * joint: COUNT children of TRANSACTIONAL_ID write into SOURCE and SINK and vote; their parent
 * commits, then aborts, then is ahead of a late vote.
 */
public class TransactionLoop {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final Duration SETTLED_WITHIN = Duration.ofSeconds(60);
    private static final String COMMITTED = "read_committed";
    private static final String UNCOMMITTED = "read_uncommitted";

    public static void main(String[] arguments) throws Exception {
        String mode = arguments[0];
        String bootstrap = arguments[1];
        String source = arguments[2];
        String sink = arguments[3];
        String id = arguments[4];
        int count = Integer.parseInt(arguments[5]);
        if (mode.equals("pipeline")) {
            fill(bootstrap, source, id + "-fill", count);
            process(bootstrap, source, sink, id, count);
        } else if (mode.equals("joint")) {
            vote(bootstrap, source, sink, id, count);
        } else {
            outlive(bootstrap, sink, id);
        }
        if (!mode.equals("joint")) {
            settle(bootstrap, sink);
        }
        System.out.println(String.join(",", everything(bootstrap, sink)));
    }

    private static void fill(String bootstrap, String topic, String id, int count) {
        try (KafkaProducer<String, String> producer = producer(bootstrap, id, 60_000)) {
            producer.initTransactions();
            for (int first = 0; first < count; first += 10) {
                boolean abortsFirst = first % 30 == 0;
                for (int attempt = abortsFirst ? 0 : 1; attempt < 2; attempt++) {
                    producer.beginTransaction();
                    for (int n = first; n < first + 10; n++) {
                        producer.send(new ProducerRecord<>(topic, "v" + n));
                    }
                    if (attempt == 0) {
                        producer.flush();
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
            }
            // Transactions that write nothing end too.
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
        }
    }

    private static void process(
            String bootstrap, String source, String sink, String id, int count) {
        int round = 0;
        int done = 0;
        try (KafkaProducer<String, String> producer = producer(bootstrap, id, 60_000);
                KafkaConsumer<String, String> consumer = consumer(bootstrap, id, COMMITTED)) {
            producer.initTransactions();
            consumer.subscribe(Set.of(source));
            while (done < count) {
                ConsumerRecords<String, String> batch = consumer.poll(POLL);
                if (batch.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : batch) {
                    producer.send(new ProducerRecord<>(sink, record.value().toUpperCase()));
                    offsets.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (++round % 3 == 1) {
                    producer.abortTransaction();
                    rewind(consumer);
                } else {
                    producer.commitTransaction();
                    done += batch.count();
                }
            }
        }
    }

    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed =
                consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            consumer.seek(partition, offset == null ? 0 : offset.offset());
        }
    }

    private static void outlive(String bootstrap, String sink, String id) throws Exception {
        try (KafkaProducer<String, String> producer = producer(bootstrap, id, 4_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(sink, "late")).get();
            settle(bootstrap, sink);
            boolean isRefused = false;
            try {
                producer.send(new ProducerRecord<>(sink, "later"));
                producer.commitTransaction();
            } catch (KafkaException refused) {
                isRefused = true;
                producer.abortTransaction();
            }
            if (!isRefused) {
                throw new IllegalStateException("a transaction outlived its timeout");
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(sink, "again"));
            producer.commitTransaction();
        }
    }

    private static void vote(
            String bootstrap, String source, String sink, String id, int count) {
        List<KafkaProducer<String, String>> children = new ArrayList<>();
        try (KafkaProducer<String, String> parent = producer(bootstrap, id, 60_000)) {
            parent.initTransactions();
            for (int n = 0; n < count; n++) {
                children.add(producer(bootstrap, id + "~>" + n, 60_000));
                children.get(n).initTransactions();
                begin(children.get(n), source, sink, "first-" + n);
                children.get(n).commitTransaction();
            }
            expect(bootstrap, source, 0);
            expect(bootstrap, sink, 0);
            parent.beginTransaction();
            parent.send(new ProducerRecord<>(sink, "decided"));
            parent.commitTransaction();
            expect(bootstrap, source, count);
            expect(bootstrap, sink, count + 1);
            // The votes of the second round are aborted: who goes on after one is fenced.
            for (KafkaProducer<String, String> child : children) {
                begin(child, source, sink, "never");
                child.commitTransaction();
            }
            begin(parent, source, sink, "never");
            parent.abortTransaction();
            refuses(() -> begin(children.get(0), source, sink, "never"));
            // A vote that comes when the parent has begun is too late.
            try (KafkaProducer<String, String> late = producer(bootstrap, id + "~>late", 60_000)) {
                late.initTransactions();
                begin(late, source, sink, "never");
                begin(parent, source, sink, "alone");
                refuses(late::commitTransaction);
            }
            parent.commitTransaction();
            expect(bootstrap, source, count + 1);
        } finally {
            for (KafkaProducer<String, String> child : children) {
                child.close(Duration.ZERO);
            }
        }
    }

    private static void begin(
            KafkaProducer<String, String> producer, String source, String sink, String value) {
        producer.beginTransaction();
        try {
            Future<RecordMetadata> one = producer.send(new ProducerRecord<>(source, value));
            producer.send(new ProducerRecord<>(sink, value)).get();
            one.get();
        } catch (InterruptedException | ExecutionException failure) {
            throw new KafkaException(failure);
        }
    }

    private static void refuses(Runnable work) {
        try {
            work.run();
        } catch (KafkaException refused) {
            if (refused instanceof ProducerFencedException
                    || refused.getCause() instanceof ExecutionException) {
                return;
            }
            throw refused;
        }
        throw new IllegalStateException("it was not refused");
    }

    private static void expect(String bootstrap, String topic, int count) {
        List<String> found = everything(bootstrap, topic);
        if (found.size() != count) {
            throw new IllegalStateException(topic + " shows " + found + ", not " + count);
        }
    }

    /** Waits until no transaction is open in TOPIC: Kafka answers before its markers are there. */
    private static void settle(String bootstrap, String topic) throws InterruptedException {
        TopicPartition partition = new TopicPartition(topic, 0);
        long deadline = System.nanoTime() + SETTLED_WITHIN.toNanos();
        try (KafkaConsumer<String, String> committed = consumer(bootstrap, topic, COMMITTED);
                KafkaConsumer<String, String> all = consumer(bootstrap, topic, UNCOMMITTED)) {
            while (end(committed, partition) < end(all, partition)) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("a transaction is open in " + topic);
                }
                Thread.sleep(20);
            }
        }
    }

    private static long end(KafkaConsumer<String, String> consumer, TopicPartition partition) {
        return consumer.endOffsets(Set.of(partition)).get(partition);
    }

    private static List<String> everything(String bootstrap, String topic) {
        List<String> values = new ArrayList<>();
        String group = topic + "-reader";
        try (KafkaConsumer<String, String> consumer = consumer(bootstrap, group, COMMITTED)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Set.of(partition));
            consumer.seekToBeginning(Set.of(partition));
            long end = end(consumer, partition);
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    values.add(record.value());
                }
            }
        }
        return values;
    }

    private static KafkaProducer<String, String> producer(
            String bootstrap, String id, int timeoutMs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", id);
        properties.put("transaction.timeout.ms", String.valueOf(timeoutMs));
        properties.put("max.block.ms", "20000");
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(
            String bootstrap, String group, String isolation) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("isolation.level", isolation);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("max.poll.records", "20");
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }
}
