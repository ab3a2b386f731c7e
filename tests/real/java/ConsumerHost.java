import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Java consumers under remote control: one JSON command a line on stdin, one JSON event a line on stdout.
 *
 * Each consumer has an id and a thread. Commands: open (with its settings), commit, pause (stop polling), resume,
 * close (leave the group), abandon (close without leaving). A command "admin" goes to {@link AdminDesk}.
 * The process ends when stdin ends.
 */
public final class ConsumerHost {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    static synchronized void emit(ObjectNode event) {
        System.out.println(event);
    }

    static ObjectNode event(String id, String name) {
        return JSON.createObjectNode().put("id", id).put("event", name);
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        emit(event("", "ready"));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            String id = command.get("id").asText();
            switch (command.get("do").asText()) {
                case "open" -> {
                    Member member = new Member(id, command.get("config"));
                    MEMBERS.put(id, member);
                    Thread thread = new Thread(member, id);
                    thread.setDaemon(true);
                    thread.start();
                }
                case "admin" -> AdminDesk.ask(id, command);
                default -> MEMBERS.get(id).commands.add(command.get("do").asText());
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** One consumer and the thread that polls it. */
    static final class Member implements Runnable, ConsumerRebalanceListener {
        final BlockingQueue<String> commands = new LinkedBlockingQueue<>();
        private final String id;
        private final JsonNode config;
        private KafkaConsumer<byte[], byte[]> consumer;
        private Set<TopicPartition> owned = new HashSet<>();
        private int generation = -1;

        Member(String id, JsonNode config) {
            this.id = id;
            this.config = config;
        }

        @Override
        public void run() {
            try {
                Properties properties = new Properties();
                config.get("java").fields().forEachRemaining(p -> properties.put(p.getKey(), p.getValue().asText()));
                consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                if (config.hasNonNull("pattern")) {
                    consumer.subscribe(Pattern.compile(config.get("pattern").asText()), this);
                } else {
                    consumer.subscribe(JSON.convertValue(config.get("topics"), List.class), this);
                }
                serve();
            } catch (Exception e) {
                emit(event(id, "error").put("error", e.getClass().getSimpleName() + ": " + e.getMessage()));
                if (consumer != null) {
                    consumer.close(CloseOptions.timeout(Duration.ofSeconds(1)));
                }
            }
            emit(event(id, "closed"));
            MEMBERS.remove(id);
        }

        private void serve() throws Exception {
            boolean polling = true;
            while (true) {
                String command = polling ? commands.poll() : commands.take();
                if (command != null) {
                    switch (command) {
                        case "commit" -> commit();
                        case "pause" -> polling = false;
                        case "resume" -> polling = true;
                        case "close" -> {
                            consumer.close();
                            return;
                        }
                        case "abandon" -> {
                            consumer.close(
                                CloseOptions.timeout(Duration.ofSeconds(5))
                                    .withGroupMembershipOperation(
                                        CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
                            return;
                        }
                        default -> throw new IllegalArgumentException(command);
                    }
                } else if (polling) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(50));
                    reportOwnership();
                    report(records);
                }
            }
        }

        private void commit() {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            ObjectNode done = event(id, "committed");
            try {
                for (TopicPartition partition : consumer.assignment()) {
                    offsets.put(partition, new OffsetAndMetadata(consumer.position(partition)));
                }
                consumer.commitSync(offsets);
                done.putNull("error");
            } catch (Exception e) {
                done.put("error", e.getClass().getSimpleName());
            }
            ArrayNode list = done.putArray("offsets");
            offsets.forEach(
                (p, o) -> list.add(JSON.createArrayNode().add(p.topic()).add(p.partition()).add(o.offset())));
            emit(done);
        }

        private void report(ConsumerRecords<byte[], byte[]> records) {
            if (records.isEmpty()) {
                return;
            }
            ObjectNode event = event(id, "records");
            ArrayNode list = event.putArray("ranges");
            for (TopicPartition partition : records.partitions()) {
                List<ConsumerRecord<byte[], byte[]>> batch = records.records(partition);
                list.add(
                    JSON.createArrayNode()
                        .add(partition.topic())
                        .add(partition.partition())
                        .add(batch.get(0).offset())
                        .add(batch.get(batch.size() - 1).offset() + 1));
            }
            emit(event);
        }

        private void reportOwnership() {
            Set<TopicPartition> now = consumer.assignment();
            ConsumerGroupMetadata group = consumer.groupMetadata();
            if (!now.equals(owned) || group.generationId() != generation) {
                owned = new HashSet<>(now);
                generation = group.generationId();
                emit(partitions("owns", owned).put("generation", generation).put("member", group.memberId()));
            }
        }

        private ObjectNode partitions(String name, Collection<TopicPartition> partitions) {
            ObjectNode event = event(id, name);
            ArrayNode list = event.putArray("partitions");
            partitions.forEach(p -> list.add(JSON.createArrayNode().add(p.topic()).add(p.partition())));
            return event;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            emit(partitions("assigned", partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            owned.removeAll(partitions);
            emit(partitions("revoked", partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            owned.removeAll(partitions);
            emit(partitions("lost", partitions));
        }
    }
}
