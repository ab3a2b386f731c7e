import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/** Java's transactional producers, each known by the handle it was opened with. */
final class TransactionDesk {
    private static final Map<String, KafkaProducer<String, String>> PRODUCERS = new ConcurrentHashMap<>();

    private TransactionDesk() {}

    /** Do one step of a producer; what it throws is the answer's error. */
    static void step(JsonNode question, Properties properties) throws Exception {
        String handle = question.get("handle").asText();
        if (question.get("step").asText().equals("open")) {
            properties.put("transactional.id", question.get("name").asText());
            properties.put("transaction.timeout.ms", question.get("timeout_ms").asText());
            properties.put("max.block.ms", "60000");
            KafkaProducer<String, String> opened =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
            PRODUCERS.put(handle, opened);
            opened.initTransactions();
            return;
        }
        KafkaProducer<String, String> producer = PRODUCERS.get(handle);
        switch (question.get("step").asText()) {
            case "begin" -> producer.beginTransaction();
            case "send" -> {
                int partition = question.path("partition").asInt(0);
                List<Future<?>> sent = new ArrayList<>();
                for (JsonNode value : question.get("values")) {
                    sent.add(
                        producer.send(
                            new ProducerRecord<>(question.get("topic").asText(), partition, null, value.asText())));
                }
                for (Future<?> each : sent) {
                    each.get();
                }
            }
            case "offsets" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (JsonNode entry : question.get("offsets")) {
                    offsets.put(
                        new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()),
                        new OffsetAndMetadata(entry.get(2).asLong()));
                }
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(question.get("group").asText()));
            }
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> {
                PRODUCERS.remove(handle);
                producer.close(Duration.ofSeconds(5));
            }
            default -> throw new IllegalArgumentException("no step " + question.get("step"));
        }
    }
}
