import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/** Counts and sums by key with Kafka Streams and RocksDB, exactly once: bootstrap, group, source, target, directory, threads. */
public final class TotalsPeer {
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
        builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()))
                .groupByKey()
                .aggregate(
                        () -> new byte[16],
                        (key, price, total) -> {
                            ByteBuffer old = ByteBuffer.wrap(total);
                            double sum = old.getDouble(8) + Double.parseDouble(price);
                            return ByteBuffer.allocate(16).putLong(old.getLong(0) + 1).putDouble(sum).array();
                        },
                        Materialized.with(Serdes.String(), Serdes.ByteArray()))
                .toStream()
                .mapValues(TotalsPeer::text)
                .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        Thread.currentThread().join();
    }

    private static String text(byte[] total) {
        ByteBuffer read = ByteBuffer.wrap(total);
        return "{\"n\":" + read.getLong(0) + ",\"total\":" + read.getDouble(8) + "}";
    }
}
