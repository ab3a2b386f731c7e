import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/** Final counts by region and half hour with Kafka Streams: bootstrap, group, source, target, directory, threads. */
public final class WindowsPeer {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("application.id", arguments[1]);
        properties.put("state.dir", arguments[4]);
        properties.put("num.stream.threads", arguments[5]);
        properties.put("processing.guarantee", "exactly_once_v2");
        properties.put("auto.offset.reset", "earliest");
        properties.put("replication.factor", "1");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(
                        arguments[2],
                        Consumed.with(Serdes.String(), Serdes.String())
                                .withTimestampExtractor((record, time) ->
                                        Instant.parse(part((String) record.value(), 7)).toEpochMilli()))
                .groupBy((key, value) -> part(value, 3), Grouped.with(Serdes.String(), Serdes.String()))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(30), Duration.ofMinutes(5)))
                .count()
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                .toStream()
                .map((of, n) -> KeyValue.pair(
                        "",
                        "{\"region\":\"" + of.key() + "\",\"window_start\":\"" + of.window().startTime()
                                + "\",\"n\":" + n + "}"))
                .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        Thread.currentThread().join();
    }

    /** A text among those in quotes: {"region":"r1","at":"2026-01-01T00:00:00Z"}. */
    private static String part(String value, int number) {
        return value.split("\"")[number];
    }
}
