import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** The Java admin client (and transactional producers) behind one question and answer: JSON in, JSON out. */
final class AdminDesk {
    private static final int PATIENCE_S = 60;

    private AdminDesk() {}

    /** Answer in a thread of its own with event "answer": either "result" or "error" is set. */
    static void ask(String id, JsonNode question) {
        Thread thread =
            new Thread(
                () -> {
                    ObjectNode answer = ConsumerHost.event(id, "answer");
                    try {
                        answer.set("result", answer(question));
                    } catch (Throwable e) {
                        Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
                        answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
                    }
                    ConsumerHost.emit(answer);
                },
                id);
        thread.setDaemon(true);
        thread.start();
    }

    private static ObjectNode answer(JsonNode question) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", question.get("bootstrap").asText());
        properties.put("request.timeout.ms", "30000");
        properties.put("default.api.timeout.ms", "55000");
        ObjectNode result = ConsumerHost.JSON.createObjectNode();
        String operation = question.get("operation").asText();
        if (operation.equals("transaction")) {
            TransactionDesk.step(question, properties);
            return result;
        }
        try (Admin admin = Admin.create(properties)) {
            switch (operation) {
                case "groups" ->
                    wait(admin.listGroups().all())
                        .forEach(
                            group ->
                                result.set(
                                    group.groupId(),
                                    ConsumerHost.JSON
                                        .createObjectNode()
                                        .put("protocol", group.protocol())
                                        .put("type", group.type().map(Object::toString).orElse(null))
                                        .put("state", group.groupState().map(Object::toString).orElse(null))));
                case "describe" -> describe(admin, question.get("group").asText(), result);
                case "offsets" ->
                    wait(
                            admin
                                .listConsumerGroupOffsets(question.get("group").asText())
                                .partitionsToOffsetAndMetadata())
                        .forEach(
                            (partition, offset) ->
                                result.set(
                                    partition.toString(),
                                    ConsumerHost.JSON
                                        .createObjectNode()
                                        .put("offset", offset.offset())
                                        .put("metadata", offset.metadata())
                                        .put("epoch", offset.leaderEpoch().orElse(-1))));
                case "alter" -> {
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    for (JsonNode entry : question.get("offsets")) {
                        offsets.put(
                            new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()),
                            new OffsetAndMetadata(entry.get(2).asLong(), "altered"));
                    }
                    wait(admin.alterConsumerGroupOffsets(question.get("group").asText(), offsets).all());
                }
                case "forget" -> {
                    Set<TopicPartition> partitions = new HashSet<>();
                    for (JsonNode entry : question.get("partitions")) {
                        partitions.add(new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()));
                    }
                    wait(admin.deleteConsumerGroupOffsets(question.get("group").asText(), partitions).all());
                }
                case "delete" -> wait(admin.deleteConsumerGroups(List.of(question.get("group").asText())).all());
                case "remove" -> {
                    List<MemberToRemove> members = new ArrayList<>();
                    question.get("instances").forEach(name -> members.add(new MemberToRemove(name.asText())));
                    wait(
                        admin
                            .removeMembersFromConsumerGroup(
                                question.get("group").asText(), new RemoveMembersFromConsumerGroupOptions(members))
                            .all());
                }
                case "create" ->
                    wait(
                        admin
                            .createTopics(
                                List.of(
                                    new NewTopic(
                                        question.get("topic").asText(),
                                        question.get("partitions").asInt(),
                                        (short) 1)))
                            .all());
                case "grow" ->
                    wait(
                        admin
                            .createPartitions(
                                Map.of(
                                    question.get("topic").asText(),
                                    NewPartitions.increaseTo(question.get("partitions").asInt())))
                            .all());
                case "drop" -> wait(admin.deleteTopics(List.of(question.get("topic").asText())).all());
                case "topics" ->
                    wait(admin.describeTopics(wait(admin.listTopics().names())).allTopicNames())
                        .forEach((name, topic) -> result.put(name, topic.partitions().size()));
                case "ends" -> {
                    Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
                    for (JsonNode entry : question.get("partitions")) {
                        wanted.put(
                            new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()), OffsetSpec.latest());
                    }
                    wait(admin.listOffsets(wanted).all())
                        .forEach((partition, end) -> result.put(partition.toString(), end.offset()));
                }
                case "cluster" ->
                    result
                        .put("nodes", wait(admin.describeCluster().nodes()).size())
                        .put("controller", wait(admin.describeCluster().controller()) != null);
                default -> throw new IllegalArgumentException(operation);
            }
        }
        return result;
    }

    private static void describe(Admin admin, String name, ObjectNode result) throws Exception {
        ConsumerGroupDescription group = wait(admin.describeConsumerGroups(List.of(name)).all()).get(name);
        result.put("state", group.groupState().toString());
        result.put("type", group.type().toString());
        result.put("assignor", group.partitionAssignor());
        result.put("simple", group.isSimpleConsumerGroup());
        ArrayNode members = result.putArray("members");
        for (MemberDescription member : group.members()) {
            ObjectNode entry = members.addObject();
            entry.put("member", member.consumerId());
            entry.put("instance", member.groupInstanceId().orElse(null));
            entry.put("client", member.clientId());
            entry.put("host", member.host());
            ArrayNode partitions = entry.putArray("partitions");
            member
                .assignment()
                .topicPartitions()
                .forEach(p -> partitions.add(ConsumerHost.JSON.createArrayNode().add(p.topic()).add(p.partition())));
        }
    }

    private static <T> T wait(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE_S, TimeUnit.SECONDS);
    }
}
