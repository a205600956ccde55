import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A writer or a reader of the disk soak with Kafka's own client. It runs until it is killed.
 *
 * <p>Arguments: NAME BOOTSTRAP TOPIC PARTITION STREAM RECORDS_PER_S DELIVERY_TIMEOUT_MS. Tells what
 * it did as the Python clients do, a line of JSON at a time (compat_tests/disk_soak/telling.py).
 */
public class DiskSoak {
    private static final int SIZE_BYTES = 16_384;
    private static final int UNACKNOWLEDGED_MAX = 500;
    private static final int RUNS_PER_LINE = 40;
    private static final Duration POLL = Duration.ofMillis(200);

    private final String name;
    private final String bootstrap;
    private final String topic;
    private final int partition;
    private final String stream;
    private final double recordsPerS;
    private final String deliveryTimeoutMs;
    private final TreeSet<Long> acknowledged = new TreeSet<>();
    private long unacknowledged = 0;

    private DiskSoak(String[] arguments) {
        name = arguments[0];
        bootstrap = arguments[1];
        topic = arguments[2];
        partition = Integer.parseInt(arguments[3]);
        stream = arguments[4];
        recordsPerS = Double.parseDouble(arguments[5]);
        deliveryTimeoutMs = arguments[6];
    }

    public static void main(String[] arguments) throws Exception {
        DiskSoak soak = new DiskSoak(arguments);
        switch (soak.name) {
            case "java_idempotent" -> soak.write();
            case "java_transactional" -> soak.transact();
            case "java_consumer_committed" -> soak.read("consumer", "read_committed");
            default -> soak.read("classic", "read_uncommitted");
        }
    }

    private void write() throws Exception {
        tell("stream", "");
        try (KafkaProducer<byte[], byte[]> producer = producer(null)) {
            long startedAt = System.nanoTime();
            for (long number = 0; ; number++) {
                pace(startedAt, number);
                awaitRoom();
                long sent = number;
                producer.send(record(number), (metadata, failure) -> noted(sent, failure == null));
                if (number % 50 == 0) {
                    tellAcknowledged();
                }
            }
        }
    }

    private synchronized void awaitRoom() throws InterruptedException {
        while (unacknowledged >= UNACKNOWLEDGED_MAX) {
            wait(200);
            tellAcknowledged();
        }
        unacknowledged++;
    }

    private synchronized void noted(long number, boolean isAcknowledged) {
        unacknowledged--;
        if (isAcknowledged) {
            acknowledged.add(number);
        }
        notifyAll();
    }

    private synchronized void tellAcknowledged() {
        List<String> runs = new ArrayList<>();
        long first = -1;
        long end = -1;
        for (long number : acknowledged) {
            if (number != end) {
                if (end > first) {
                    runs.add("[" + first + "," + end + "]");
                }
                first = number;
            }
            end = number + 1;
        }
        if (end > first) {
            runs.add("[" + first + "," + end + "]");
        }
        acknowledged.clear();
        tell("acknowledged", ",\"runs\":[" + String.join(",", runs) + "]");
    }

    /** Transactions of up to twenty records, every fourth of which is aborted. */
    private void transact() throws Exception {
        Random random = new Random();
        try (KafkaProducer<byte[], byte[]> producer = producer(name + "-" + topic)) {
            producer.initTransactions();
            long startedAt = System.nanoTime();
            long number = 0;
            while (true) {
                pace(startedAt, number);
                long first = number;
                number += 1 + random.nextInt(20);
                String which = ",\"first\":" + first + ",\"end\":" + number;
                tell("begin", which);
                try {
                    producer.beginTransaction();
                    for (long each = first; each < number; each++) {
                        producer.send(record(each));
                    }
                    if (random.nextInt(4) > 0) {
                        tell("committing", which);
                        producer.commitTransaction();
                        tell("committed", which);
                        continue;
                    }
                } catch (KafkaException refused) {
                    tell("refused", ",\"why\":\"" + refused.getClass().getSimpleName() + "\"");
                }
                producer.abortTransaction();
                tell("aborted", which);
            }
        }
    }

    private void read(String protocol, String isolation) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", name + "-" + topic);
        properties.put("group.protocol", protocol);
        properties.put("isolation.level", isolation);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(
                        properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(Set.of(topic));
            while (true) {
                tellRead(consumer.poll(POLL));
                try {
                    consumer.commitSync(Duration.ofSeconds(5));
                } catch (AuthorizationException fatal) {
                    throw fatal;
                } catch (KafkaException again) {
                    tell("refused", ",\"why\":\"" + again.getClass().getSimpleName() + "\"");
                }
            }
        }
    }

    private void tellRead(Iterable<ConsumerRecord<byte[], byte[]>> records) {
        List<String> runs = new ArrayList<>();
        String of = "";
        long first = -1;
        long end = -1;
        for (ConsumerRecord<byte[], byte[]> record : records) {
            byte[] value = record.value();
            String text = new String(value, StandardCharsets.US_ASCII);
            if (!text.startsWith(checksum(value, 8))) {
                String place = record.partition() + " at " + record.offset();
                tell("torn", ",\"where\":\"" + place + "\"");
                continue;
            }
            String[] parts = text.substring(8).split(":", 4);
            long number = Long.parseLong(parts[2]);
            if (!parts[1].equals(of) || number != end) {
                add(runs, of, first, end);
                of = parts[1];
                first = number;
            }
            end = number + 1;
        }
        add(runs, of, first, end);
        int start = 0;
        do {
            int stop = Math.min(start + RUNS_PER_LINE, runs.size());
            String told = String.join(",", runs.subList(start, stop));
            tell("read", ",\"runs\":[" + told + "]");
            start = stop;
        } while (start < runs.size());
    }

    private static void add(List<String> runs, String stream, long first, long end) {
        if (end > first) {
            runs.add("[\"" + stream + "\"," + first + "," + end + "]");
        }
    }

    private void pace(long startedAt, long number) throws InterruptedException {
        long dueInMs = (long) (number / recordsPerS * 1000) - (System.nanoTime() - startedAt) / 1_000_000;
        if (dueInMs > 0) {
            Thread.sleep(dueInMs);
        }
    }

    private ProducerRecord<byte[], byte[]> record(long number) {
        StringBuilder text = new StringBuilder("00000000:" + stream + ":" + number + ":");
        for (int at = text.length(); at < SIZE_BYTES; at++) {
            text.append((char) (33 + (number + at) % 94));
        }
        byte[] value = text.toString().getBytes(StandardCharsets.US_ASCII);
        byte[] checksum = checksum(value, 8).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(checksum, 0, value, 0, checksum.length);
        return new ProducerRecord<>(topic, partition, null, value);
    }

    private static String checksum(byte[] value, int from) {
        CRC32 crc = new CRC32();
        crc.update(value, from, value.length - from);
        return String.format("%08x", crc.getValue());
    }

    private void tell(String event, String facts) {
        System.out.println("{\"event\":\"" + event + "\",\"stream\":\"" + stream + "\"" + facts + "}");
    }

    private KafkaProducer<byte[], byte[]> producer(String transactionalId) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("acks", "all");
        properties.put("linger.ms", "20");
        properties.put("batch.size", "131072");
        properties.put("max.block.ms", deliveryTimeoutMs);
        properties.put("delivery.timeout.ms", deliveryTimeoutMs);
        if (transactionalId != null) {
            properties.put("transactional.id", transactionalId);
            properties.put("transaction.timeout.ms", "30000");
        }
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
