import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams counts words, exactly once, until its standard input ends.
 *
 * <p>Arguments: BOOTSTRAP APPLICATION TEXT COUNTS STATE_DIRECTORY. Each word goes through a
 * repartition topic into a store in memory, which every start reads back from its changelog.
 * Nothing is cached: COUNTS gets 1, 2, 3 and so on for each word. The two members of the group are
 * static. Prints the states it goes through; ends with 1 when Streams gives up.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        String application = arguments[1];
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100");
        properties.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, "200");
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        properties.put(StreamsConfig.consumerPrefix("group.instance.id"), application);
        properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        Topology topology = topology(arguments[2], arguments[3]);
        try (KafkaStreams streams = new KafkaStreams(topology, properties)) {
            streams.setStateListener(
                    (now, before) -> {
                        System.out.println(now);
                        if (now == KafkaStreams.State.ERROR) {
                            Runtime.getRuntime().halt(1);
                        }
                    });
            streams.start();
            System.in.transferTo(System.out);
        }
    }

    private static Topology topology(String text, String counts) {
        Serde<String> string = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(text, Consumed.with(string, string))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", string, string))
                .count(
                        Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                                .withKeySerde(string)
                                .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(String::valueOf)
                .to(counts, Produced.with(string, string));
        return builder.build();
    }
}
